"""What the models accept, fill in and refuse."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel, ValidationError

from speculator_operator.api import base, crds, pods, speculator, storage, sync_policy, training_policy, version
from speculator_operator.api.base import ApiModel, InvalidResource, Resource, Rule, unused_settings
from speculator_operator.api.speculator import NAME_LIMIT, Speculator, SpeculatorSpec, name_problem
from speculator_operator.api.status import Speedup
from speculator_operator.api.sync_policy import SyncPolicy, SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicy, TrainingPolicySpec
from speculator_operator.api.version import SpeculatorVersion, verdict_fields, version_spec
from speculator_runtime.contracts.ledger import Interval, Manifest, Verdict, VerdictRecord
from speculator_runtime.contracts.plan import VersionRef
from support.spec_cases import MINIMAL, REFUSED, Refused, with_fields

KINDS: dict[str, type[Resource]] = {
    model.__name__: model for model in (Speculator, SyncPolicy, TrainingPolicy, SpeculatorVersion)
}


def named(spec: dict[str, object], name: str = "chat") -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def test_the_smallest_speculator_names_a_model_and_a_bucket() -> None:
    spec = Speculator.parse(named(MINIMAL)).spec
    assert (spec.serving.replicas, spec.mode.value, spec.engine.type) == (1, "Auto", "reference")
    assert spec.target.name == "tiny"


def test_the_policies_need_nothing() -> None:
    assert SyncPolicy.parse({"metadata": {"name": "p"}}).spec == SyncPolicySpec()
    assert TrainingPolicy.parse({"metadata": {"name": "p"}}).spec == TrainingPolicySpec()


@pytest.mark.parametrize("case", [c for c in REFUSED if not c.only_server and not c.before], ids=lambda c: c.name)
def test_the_loop_checks_again_what_the_api_server_refuses(case: Refused) -> None:
    with pytest.raises(InvalidResource) as refusal:
        KINDS[case.kind].parse(named(case.spec))
    assert case.message in str(refusal.value)


def _rules() -> Iterator[Rule]:
    for module in (base, pods, speculator, storage, sync_policy, training_policy, version):
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, ApiModel) and found.__module__ == module.__name__:
                yield from found.rules
    for definition in crds.DEFINITIONS:
        yield from definition.rules


@pytest.mark.parametrize("rule", [r for r in _rules() if r.cel != "self == oldSelf"], ids=lambda r: r.message[:40])
def test_every_rule_has_a_case_that_it_refuses(rule: Rule) -> None:
    assert any(case.message in rule.message for case in REFUSED), f"add a case for: {rule.message}"


def test_a_typing_error_in_a_field_is_named_with_its_path() -> None:
    with pytest.raises(InvalidResource) as refusal:
        Speculator.parse(named(with_fields(serving__replica=2)))
    assert refusal.value.problems == ["spec.serving.replica: Extra inputs are not permitted"]


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InvalidResource) as refusal:
        Speculator.parse(named(with_fields(serving__replicas=-1, drafter__topk=0, storage__s3__bucket="B")))
    assert [problem.split(":")[0] for problem in refusal.value.problems] == [
        "spec.storage.s3.bucket",
        "spec.drafter.topk",
        "spec.serving.replicas",
    ]


def test_a_status_of_a_newer_operator_can_be_read() -> None:
    parsed = Speculator.parse(named(MINIMAL) | {"status": {"phase": "Canary", "laterField": 1, "planGeneration": 7}})
    assert parsed.status.plan_generation == 7


def test_an_object_of_another_group_version_is_refused() -> None:
    with pytest.raises(InvalidResource, match=r"expected 'speculator.dev/v1alpha1'"):
        Speculator.parse(named(MINIMAL) | {"apiVersion": "speculator.dev/v2"})


@pytest.mark.parametrize(
    ("steps", "topk", "given", "nodes"), [(3, 1, None, 4), (2, 2, None, 7), (8, 4, None, 64), (3, 2, 8, 8)]
)
def test_the_draft_tree_is_filled_in(steps: int, topk: int, given: int | None, nodes: int) -> None:
    drafter = speculator.Drafter(steps=steps, topk=topk, draft_tokens=given)
    assert drafter.shape().draft_tokens == nodes


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("hf://HuggingFaceTB/SmolLM2-135M", "SmolLM2-135M"),
        ("s3://models/a/tiny/", "tiny"),
        ("pvc://models/llama", "llama"),
    ],
)
def test_the_target_is_served_under_the_last_part_of_its_address(model: str, name: str) -> None:
    assert speculator.Target(model=model).name == name


@pytest.mark.parametrize("model", ["llama", "/models/llama", "http://x/y", "hf://justname", "s3://ab/x", "s3://bucket"])
def test_an_address_that_nothing_can_fetch_is_refused(model: str) -> None:
    with pytest.raises(ValidationError):
        speculator.Target(model=model)


def test_names_from_which_pods_cannot_be_named_have_a_reason() -> None:
    assert name_problem("a" * NAME_LIMIT) is None
    assert "46 characters" in str(name_problem("a" * (NAME_LIMIT + 1)))
    for name in ("7b", "a.b", "a-", ""):
        assert "begin with a letter" in str(name_problem(name))


def test_settings_that_this_release_does_not_act_on_are_listed_when_somebody_sets_them() -> None:
    assert list(unused_settings(TrainingPolicySpec())) == []
    policy = TrainingPolicySpec.model_validate(
        {"loss": {"discard": {"weight": "0.1"}}, "offline": {"source": "s3://archive/x"}, "seed": 4}
    )
    assert list(unused_settings(policy)) == ["spec.loss.discard.weight", "spec.offline"]
    arms = [{"name": "TargetOnly", "share": 2}, {"name": "Candidate"}]
    sync = SyncPolicySpec.model_validate({"canary": {"arms": arms}})
    assert list(unused_settings(sync)) == ["spec.canary.arms[0].share"]


def test_what_is_written_can_be_read_back() -> None:
    spec = SpeculatorSpec.model_validate(with_fields(serving__podTemplate={"hostIPC": True}, engine__args=["--x"]))
    assert SpeculatorSpec.model_validate(spec.wire()) == spec
    assert spec.wire()["serving"]["podTemplate"]["hostIPC"] is True


def test_a_speedup_keeps_an_unbounded_upper_bound() -> None:
    interval = Interval(estimate=1.3, lower=1.1, upper=float("inf"), pairs=12)
    assert Speedup.of(interval).upper is None
    assert Speedup.of(interval).interval() == interval


def manifest() -> Manifest:
    return Manifest.model_validate(
        {
            "version": 2,
            "parent": {"version": 1, "sha256": "a" * 64},
            "parent_manifest_sha256": "b" * 64,
            "files": {"model.safetensors": {"sha256": "c" * 64, "size": 10}},
            "target": {"model": "s3://m/x", "digest": "d", "hidden_size": 8, "vocab_size": 16},
            "capture_layers": (2, 3, 4),
            "draft_vocab_size": 16,
            "vocabulary": "full",
            "vocabulary_used": 16,
            "code_version": "0.1.0",
            "training_policy_sha256": "e" * 64,
            "data": {"requests": 5, "draft_versions": {0: 3, 1: 2}},
            "training_step": 9,
            "metrics": {"loss": 1.5e-7, "gap": -0.25},
            "created": datetime(2026, 1, 1, tzinfo=UTC),
        }
    )


def test_a_version_shows_its_manifest() -> None:
    spec = version_spec(manifest(), "chat", "s3://b/p/versions/000002", "f" * 64)
    assert spec.parent is not None
    assert (spec.parent.version, spec.parent.manifest_sha256) == (1, "b" * 64)
    assert spec.wire()["data"]["draftVersions"] == {"0": 3, "1": 2}
    assert spec.metrics == {"gap": "-0.25", "loss": "1.5E-7"}


def test_a_version_shows_its_verdict() -> None:
    record = VerdictRecord(
        sequence=3,
        version=VersionRef(version=2, sha256="c" * 64),
        verdict=Verdict.PROMOTED,
        reason="Faster",
        message="",
        decided_by="gate",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        against_target_only=Interval(estimate=1.31, lower=1.12, upper=1.5, pairs=20),
        alpha=0.05,
    )
    status = version.SpeculatorVersionStatus(**verdict_fields(record))
    assert status.against_target_only == Speedup(estimate="1.3100", lower="1.1200", upper="1.5000", pairs=20)
    assert status.verdicts == 3


def test_every_model_of_the_api_says_what_it_is() -> None:
    for definition in crds.DEFINITIONS:
        assert issubclass(definition.model, BaseModel)
        assert definition.model.__doc__
