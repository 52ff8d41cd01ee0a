"""The CRDs at a real API server: defaults, refusals, status, scale, explain, get."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from speculator_operator.api import crds
from speculator_operator.api.base import API_VERSION, Resource
from speculator_operator.api.speculator import Speculator
from speculator_operator.api.status import Condition, Phase, SpeculatorStatus
from speculator_operator.api.sync_policy import SyncPolicy
from speculator_operator.api.training_policy import TrainingPolicy
from speculator_operator.api.version import SpeculatorVersion
from support.apiserver import ApiServer
from support.spec_cases import MINIMAL, REFUSED, Refused, with_fields

KINDS: dict[str, type[Resource]] = {
    model.__name__: model for model in (Speculator, SyncPolicy, TrainingPolicy, SpeculatorVersion)
}


@pytest.fixture(scope="module")
def namespace(apiserver: ApiServer) -> str:
    return apiserver.new_namespace()


def custom(kind: str, namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("kind", "spec"), [("Speculator", MINIMAL), ("SyncPolicy", {}), ("TrainingPolicy", {})], ids=lambda v: str(v)[:14]
)
def test_the_server_fills_in_the_defaults_of_the_models(
    apiserver: ApiServer, namespace: str, kind: str, spec: dict[str, Any]
) -> None:
    apiserver.apply(custom(kind, namespace, "smallest", spec))
    stored = apiserver.get(kind, "smallest", namespace)
    model = KINDS[kind].parse(custom(kind, namespace, "smallest", spec))
    # Lists and maps that are empty by default are left absent by the server.
    assert _filled(stored["spec"]) == _filled(model.wire()["spec"])
    assert KINDS[kind].parse(stored).wire()["spec"] == model.wire()["spec"]


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        items = {key: _filled(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in ({}, [])}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def test_an_object_that_is_partly_given_gets_the_other_defaults_too(apiserver: ApiServer, namespace: str) -> None:
    apiserver.apply(custom("SyncPolicy", namespace, "partly", {"canary": {"block": "8s"}}))
    canary = apiserver.get("SyncPolicy", "partly", namespace)["spec"]["canary"]
    assert (canary["block"], canary["washout"], canary["steps"]) == ("8s", "3s", [{"replicas": 1}])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_the_server_refuses_with_words_that_help(apiserver: ApiServer, namespace: str, case: Refused) -> None:
    name = case.metadata_name if case.metadata_name != "chat" else re.sub("[^a-z]+", "-", case.name)[:45].strip("-")
    if case.before is not None:
        apiserver.apply(custom(case.kind, namespace, name, case.before))
    answer = apiserver.apply(custom(case.kind, namespace, name, case.spec), check=False)
    assert answer.returncode != 0
    assert case.message in answer.stderr


def test_the_target_may_be_changed_once_it_is_moving(apiserver: ApiServer, namespace: str) -> None:
    apiserver.apply(custom("Speculator", namespace, "moving", MINIMAL))
    moved = with_fields(target={"model": "s3://models/next", "updates": "Moving"})
    apiserver.apply(custom("Speculator", namespace, "moving", moved))
    assert apiserver.get("Speculator", "moving", namespace)["spec"]["target"]["model"] == "s3://models/next"


def test_a_new_action_takes_the_place_of_the_old_one(apiserver: ApiServer, namespace: str) -> None:
    for action in ({"id": "1", "type": "Promote"}, {"id": "2", "type": "Rollback", "version": 3}):
        apiserver.apply(custom("Speculator", namespace, "acted", with_fields(rollout={"action": action})))
    assert apiserver.get("Speculator", "acted", namespace)["spec"]["rollout"]["action"]["id"] == "2"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"serving__replicas": -1}, "spec.serving.replicas"),
        ({"target": {"model": "llama"}}, "spec.target.model"),
        ({"serving__drain": "20"}, "spec.serving.drain"),
        ({"rollout": {"action": {"id": "", "type": "Abort"}}}, "spec.rollout.action.id"),
        ({"serving__resources": {"limits": {"memory": "4 GB"}}}, "spec.serving.resources.limits.memory"),
    ],
)
def test_a_value_out_of_range_is_named(apiserver: ApiServer, namespace: str, fields: dict[str, Any], path: str) -> None:
    answer = apiserver.apply(custom("Speculator", namespace, "wrong", with_fields(**fields)), check=False)
    assert path in answer.stderr


def test_a_typing_error_is_refused(apiserver: ApiServer, namespace: str) -> None:
    answer = apiserver.apply(custom("Speculator", namespace, "wrong", with_fields(serving__replica=2)), check=False)
    assert "spec.serving.replica" in answer.stderr


def test_provenance_of_a_version_does_not_change(apiserver: ApiServer, namespace: str) -> None:
    spec = version_spec()
    apiserver.apply(custom("SpeculatorVersion", namespace, "chat-000001", spec))
    answer = apiserver.apply(custom("SpeculatorVersion", namespace, "chat-000001", spec | {"version": 2}), check=False)
    assert "a version's provenance does not change" in answer.stderr


def version_spec() -> dict[str, Any]:
    return {
        "speculator": "chat",
        "version": 1,
        "sha256": "a" * 64,
        "sizeBytes": 10,
        "location": "s3://drafters/p/versions/000001",
        "algorithm": "EAGLE3",
        "target": {"model": "s3://models/tiny", "digest": "d", "hiddenSize": 8, "vocabSize": 16},
        "captureLayers": [2, 3, 4],
        "draftVocabSize": 16,
        "vocabulary": "full",
        "vocabularyUsed": 16,
        "codeVersion": "0.1.0",
        "trainingStep": 1,
        "metrics": {"loss": "1.5E-7"},
        "data": {"requestsTotal": 42, "domains": {"sql": 42}},
        "created": "2026-01-01T00:00:00Z",
    }


def example(schema: dict[str, Any], name: str = "") -> Any:
    """A value that the schema takes, every field of it filled in."""
    if "enum" in schema:
        return schema["enum"][-1]
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return {"anything": {"nested": [1, 2.5, "three"]}}
    match schema["type"]:
        case "object" if "properties" in schema:
            return {key: example(child, key) for key, child in schema["properties"].items()}
        case "object":
            return {"key": example(schema["additionalProperties"])}
        case "array":
            return [example(schema["items"])]
        case "integer":
            return 3
        case "boolean":
            return True
    if schema.get("format") == "date-time":
        return "2026-01-02T03:04:05Z"
    pattern = schema.get("pattern", "")
    for text in (f"some {name}", "Word", "1.25", "a" * 64, "90s"):
        if re.search(pattern, text) and len(text) <= schema.get("maxLength", 99):
            return text
    raise AssertionError(f"no example for {name}: {pattern}")


@pytest.mark.parametrize(
    ("kind", "spec"), [("Speculator", MINIMAL), ("SpeculatorVersion", version_spec())], ids=["speculator", "version"]
)
def test_nothing_of_a_full_status_is_lost(
    apiserver: ApiServer, namespace: str, kind: str, spec: dict[str, Any]
) -> None:
    definition = next(d for d in crds.DEFINITIONS if d.kind == kind)
    schema = crds.crd(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    status = example(schema["properties"]["status"])
    apiserver.apply(custom(kind, namespace, "full-status", spec))
    patch = json.dumps({"status": status})
    apiserver.kubectl(
        "patch", kind, "full-status", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch
    )
    stored = apiserver.get(kind, "full-status", namespace)
    assert stored["status"] == status
    model = KINDS[kind].parse(stored)
    assert model.wire()["status"] == status


def test_the_status_of_a_new_speculator_can_be_written_as_the_model_writes_it(
    apiserver: ApiServer, namespace: str
) -> None:
    status = SpeculatorStatus(
        observed_generation=1,
        phase=Phase.STARTING,
        conditions=[
            Condition(
                type="Ready",
                status="False",
                reason="EngineStarting",
                last_transition_time=datetime(2026, 1, 1, tzinfo=UTC),
                observed_generation=1,
            )
        ],
    )
    apiserver.apply(custom("Speculator", namespace, "new-status", MINIMAL))
    arguments = ("speculator", "new-status", "-n", namespace, "--subresource=status", "--type=merge")
    apiserver.kubectl("patch", *arguments, "-p", json.dumps({"status": status.wire()}))
    stored = apiserver.get("Speculator", "new-status", namespace)
    assert Speculator.parse(stored).status == status
    waited = apiserver.kubectl("wait", "--for=condition=Ready=false", "spc/new-status", "-n", namespace, "--timeout=5s")
    assert "condition met" in waited.stdout


def test_an_autoscaler_can_scale_the_replicas(apiserver: ApiServer, namespace: str) -> None:
    apiserver.apply(custom("Speculator", namespace, "scaled", MINIMAL))
    status = json.dumps({"status": {"replicas": 1, "selector": "speculator.dev/speculator=scaled"}})
    patch = ("patch", "speculator", "scaled", "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
    apiserver.kubectl(*patch)
    path = f"/apis/speculator.dev/v1alpha1/namespaces/{namespace}/speculators/scaled/scale"
    scale = json.loads(apiserver.kubectl("get", "--raw", path).stdout)
    assert scale["spec"] == {"replicas": 1}
    assert scale["status"] == {"replicas": 1, "selector": "speculator.dev/speculator=scaled"}
    apiserver.kubectl("scale", "speculator/scaled", "--replicas=3", "-n", namespace)
    assert apiserver.get("Speculator", "scaled", namespace)["spec"]["serving"]["replicas"] == 3


@pytest.mark.parametrize("definition", crds.DEFINITIONS, ids=lambda d: d.plural)
def test_explain_has_words_for_every_field(apiserver: ApiServer, definition: crds.Definition) -> None:
    text = apiserver.kubectl("explain", definition.plural, "--recursive=false").stdout
    assert "<empty>" not in text
    for part in ("spec", "status"):
        if part == "status" and "status" not in definition.model.model_fields:
            continue
        explained = apiserver.kubectl("explain", f"{definition.plural}.{part}").stdout
        assert "<empty>" not in explained
        assert "<no description>" not in explained
        assert "FIELDS" in explained


def test_get_shows_what_matters(apiserver: ApiServer, namespace: str) -> None:
    apiserver.apply(custom("Speculator", namespace, "shown", MINIMAL))
    status = {
        "phase": "Canary",
        "stable": {"version": 3, "sha256": "a" * 64},
        "candidate": {"version": 4, "sha256": "b" * 64},
        "step": "1/4",
        "speedup": {"estimate": "1.31", "lower": "1.12", "pairs": 20},
        "mode": "Speculative",
    }
    arguments = ("speculator", "shown", "-n", namespace, "--subresource=status", "--type=merge")
    apiserver.kubectl("patch", *arguments, "-p", json.dumps({"status": status}))
    heads, row = apiserver.kubectl("get", "spc", "shown", "-n", namespace).stdout.splitlines()
    assert heads.split() == ["NAME", "PHASE", "STABLE", "CANDIDATE", "STEP", "SPEEDUP", "MODE", "AGE"]
    assert row.split()[:-1] == ["shown", "Canary", "3", "4", "1/4", "1.31", "Speculative"]


def test_one_category_lists_all_kinds(apiserver: ApiServer, namespace: str) -> None:
    for kind, spec in (("Speculator", MINIMAL), ("SyncPolicy", {}), ("TrainingPolicy", {})):
        apiserver.apply(custom(kind, namespace, "listed", spec))
    found = apiserver.kubectl("get", "speculation", "-n", namespace, "-o", "name").stdout
    for plural in ("speculator", "syncpolicy", "trainingpolicy"):
        assert f"{plural}.speculator.dev/listed" in found


@pytest.mark.parametrize("definition", crds.DEFINITIONS, ids=lambda d: d.plural)
def test_the_server_finds_nothing_wrong_with_a_schema(apiserver: ApiServer, definition: crds.Definition) -> None:
    name = f"{definition.plural}.speculator.dev"
    stored = json.loads(apiserver.kubectl("get", "crd", name, "-o", "json").stdout)
    conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
    assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
    assert "NonStructuralSchema" not in conditions
