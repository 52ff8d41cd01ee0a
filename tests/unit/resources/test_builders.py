"""What holds for the objects of every Speculator, and what is refused."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from speculator_operator.api.speculator import NAME_LIMIT, Speculator
from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicySpec
from speculator_operator.resources import CannotBuild, build_objects, common_labels, fill_tokens
from speculator_operator.resources.names import CONFIG_HASH
from speculator_runtime.contracts.settings import AgentSettings, EngineSettings, FetchSettings, TrainerSettings
from support.golden import CASES, IMAGES, UID, Golden, counting_bytes, load
from support.spec_cases import with_fields

Object = dict[str, Any]


def speculator(name: str = "chat", **fields: Any) -> Speculator:
    return Speculator.parse(
        {"metadata": {"name": name, "namespace": "models", "uid": UID}, "spec": with_fields(**fields)}
    )


def build(
    made_for: Speculator,
    training: TrainingPolicySpec | None = TrainingPolicySpec(),  # noqa: B008
    sync: SyncPolicySpec | None = SyncPolicySpec(),  # noqa: B008
) -> dict[tuple[str, str], Object]:
    objects, _ = build_objects(made_for, training, sync, {}, IMAGES, counting_bytes())
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}


def templates(objects: list[Object]) -> Iterator[Object]:
    for obj in objects:
        if obj["kind"] in ("StatefulSet", "Deployment"):
            yield obj["spec"]["template"]


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load(request.param)


def test_every_object_goes_with_its_speculator_and_can_be_selected(golden: Golden) -> None:
    for obj in golden.build():
        (owner,) = obj["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (UID, True)
        assert common_labels(golden.speculator).items() <= obj["metadata"]["labels"].items()


def test_no_container_has_more_rights_than_it_needs(golden: Golden) -> None:
    for template in templates(golden.build()):
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }


def test_service_accounts_carry_no_token(golden: Golden) -> None:
    accounts = [obj for obj in golden.build() if obj["kind"] == "ServiceAccount"]
    assert len(accounts) == 2
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


def test_every_mount_has_its_volume(golden: Golden) -> None:
    for template in templates(golden.build()):
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        for container in containers(template["spec"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_selectors_match_the_pods_whatever_labels_a_user_adds(golden: Golden) -> None:
    objects = golden.build()
    pods = {
        obj["metadata"]["name"]: obj["spec"]["template"]["metadata"]["labels"]
        for obj in objects
        if "template" in obj.get("spec", {})
    }
    engine, trainer = (
        pods[f"{golden.speculator.metadata.name}-engine"],
        pods[f"{golden.speculator.metadata.name}-trainer"],
    )
    for obj in objects:
        match obj["kind"]:
            case "Service":
                selector = obj["spec"]["selector"]
            case "StatefulSet" | "Deployment" | "PodDisruptionBudget":
                selector = obj["spec"]["selector"]["matchLabels"]
            case _:
                continue
        wanted, other = (trainer, engine) if obj["metadata"]["name"].endswith("-trainer") else (engine, trainer)
        assert selector.items() <= wanted.items()
        assert not selector.items() <= other.items()


def test_programs_can_read_their_settings_and_secrets(golden: Golden, tmp_path: Path) -> None:
    objects = golden.build()
    files = next(obj["data"] for obj in objects if obj["kind"] == "ConfigMap")
    models = {
        "engine.json": EngineSettings,
        "agent.json": AgentSettings,
        "trainer.json": TrainerSettings,
        "fetch-engine.json": FetchSettings,
        "fetch-trainer.json": FetchSettings,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        models[name].load(tmp_path / name)
    for template in templates(objects):
        for container in containers(template["spec"]):
            _, flag, path = container["command"][:3]
            assert flag == "--settings"
            assert Path(path).name in files


def test_the_engine_is_a_main_container_and_the_agent_a_sidecar_that_starts_before_it(golden: Golden) -> None:
    pod = next(templates([obj for obj in golden.build() if obj["kind"] == "StatefulSet"]))["spec"]
    assert [container["name"] for container in pod["containers"]] == ["engine"]
    agent = pod["initContainers"][-1]
    assert (agent["name"], agent["restartPolicy"]) == ("agent", "Always")
    assert "readinessProbe" not in agent
    assert "startupProbe" not in agent


def test_a_pod_ends_only_after_requests_could_be_finished(golden: Golden) -> None:
    pod = next(templates([obj for obj in golden.build() if obj["kind"] == "StatefulSet"]))["spec"]
    files = next(obj["data"] for obj in golden.build() if obj["kind"] == "ConfigMap")
    drain = EngineSettings.model_validate_json(files["engine.json"]).drain_seconds
    before = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > before + drain


def test_the_longest_name_still_gives_valid_labels() -> None:
    engine = build(speculator("a" * NAME_LIMIT))["StatefulSet", "a" * NAME_LIMIT + "-engine"]
    # The controller adds these labels: a pod's name, and the set's name with a revision hash of up to 10 characters.
    assert len(engine["metadata"]["name"] + "-9999") <= 63
    assert len(engine["metadata"]["name"] + "-" + "x" * 10) <= 63


def hashes(objects: dict[tuple[str, str], Object]) -> tuple[str, str]:
    engine = objects["StatefulSet", "chat-engine"]["spec"]["template"]["metadata"]["annotations"]
    trainer = objects["Deployment", "chat-trainer"]["spec"]["template"]["metadata"]["annotations"]
    return engine[CONFIG_HASH], trainer[CONFIG_HASH]


def test_a_changed_training_policy_restarts_the_trainer_and_leaves_serving_alone() -> None:
    engine, trainer = hashes(build(speculator()))
    policy = TrainingPolicySpec.model_validate({"loss": {"tttLength": 3}})
    engine_after, trainer_after = hashes(build(speculator(), policy))
    assert engine_after == engine
    assert trainer_after != trainer


def test_a_changed_canary_restarts_nothing() -> None:
    policy = SyncPolicySpec.model_validate({"canary": {"alpha": "0.1"}})
    assert hashes(build(speculator(), sync=policy)) == hashes(build(speculator()))


def test_changed_capture_rolls_the_engines() -> None:
    policy = TrainingPolicySpec.model_validate({"capture": {"teacherTopK": 8}})
    assert hashes(build(speculator(), policy))[0] != hashes(build(speculator()))[0]


def test_scaling_does_not_roll_the_engines() -> None:
    one, three = build(speculator()), build(speculator(serving__replicas=3))
    assert three["StatefulSet", "chat-engine"]["spec"]["replicas"] == 3
    assert (
        one["StatefulSet", "chat-engine"]["spec"]["template"] == three["StatefulSet", "chat-engine"]["spec"]["template"]
    )


def test_a_user_s_variable_wins_over_ours_and_is_there_once() -> None:
    env = [{"name": "OMP_NUM_THREADS", "value": "3"}]
    built = build(speculator(engine__env=env, serving__podTemplate={"env": [{"name": "HOME", "value": "/h"}]}))
    (engine,) = built["StatefulSet", "chat-engine"]["spec"]["template"]["spec"]["containers"]
    names = [variable["name"] for variable in engine["env"]]
    assert len(names) == len(set(names))
    values = {variable["name"]: variable.get("value") for variable in engine["env"]}
    assert (values["OMP_NUM_THREADS"], values["HOME"]) == ("3", "/h")


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"engine": {"type": "sglang"}}, "NotSupportedYet", "use one of ['reference']"),
        ({"drafter": {"initFrom": "hf://org/name"}}, "NotSupportedYet", "copy the checkpoint there"),
        ({"target": {"model": "file:///x"}}, "NotSupportedYet", "use hf://ORG/NAME"),
        ({"serving": {"agent": {"traceQueueSize": "1Ki"}}}, "InvalidSettings", "trace_queue_bytes"),
    ],
)
def test_what_cannot_be_built_is_refused_with_what_to_do(fields: dict[str, Any], reason: str, words: str) -> None:
    with pytest.raises(CannotBuild) as refusal:
        build(speculator(**fields))
    assert refusal.value.reason == reason
    assert words in refusal.value.message


@pytest.mark.parametrize(
    ("training", "sync", "field"), [(None, SyncPolicySpec(), "training"), (TrainingPolicySpec(), None, "sync")]
)
def test_without_a_policy_nothing_is_built_on_defaults_that_nobody_asked_for(
    training: TrainingPolicySpec | None, sync: SyncPolicySpec | None, field: str
) -> None:
    with pytest.raises(CannotBuild, match=f"PolicyUnresolved: spec.{field}PolicyRef"):
        build(speculator(), training, sync)


def test_tokens_that_exist_are_kept() -> None:
    first = fill_tokens({}, counting_bytes())
    again = fill_tokens(first, lambda count: pytest.fail("nothing is missing"))
    assert again == first


def test_a_missing_half_of_a_key_pair_renews_the_pair_and_nothing_else() -> None:
    first = fill_tokens({}, counting_bytes())
    partial = {name: value for name, value in first.items() if name != "curve-agent-public"}
    again = fill_tokens(partial, lambda count: b"\x99" * count)
    changed = {name for name in first if again[name] != first[name]}
    assert changed == {"curve-agent-public", "curve-agent-secret"}


def test_key_pairs_are_those_of_zeromq() -> None:
    tokens = fill_tokens({}, counting_bytes())
    for pair in ("curve-trainer", "curve-agent"):
        public = zmq.curve_public(tokens[f"{pair}-secret"].encode()).decode()
        assert tokens[f"{pair}-public"] == public


def test_the_secret_holds_the_tokens_returned() -> None:
    objects, tokens = build_objects(speculator(), TrainingPolicySpec(), SyncPolicySpec(), {}, IMAGES)
    (secret,) = (obj for obj in objects if obj["kind"] == "Secret")
    assert {name: base64.b64decode(value).decode() for name, value in secret["data"].items()} == tokens
    assert len(set(tokens.values())) == len(tokens)
