"""Objects that must be refused, with the words of the refusal: one list for the models and for the API server."""

import copy
from dataclasses import dataclass, field
from typing import Any

S3 = {"bucket": "drafters"}
MINIMAL: dict[str, Any] = {"target": {"model": "s3://models/tiny"}, "storage": {"s3": S3}}


@dataclass(frozen=True)
class Refused:
    """`spec` of a `kind` that a rule refuses with `message`. With `before`, it is refused as an update of that spec."""

    name: str
    kind: str
    spec: dict[str, Any]
    message: str
    before: dict[str, Any] | None = None
    metadata_name: str = "chat"
    only_server: bool = field(default=False)


def with_fields(**fields: Any) -> dict[str, Any]:
    """The smallest Speculator spec with further fields; `a__b` is a path."""
    spec = copy.deepcopy(MINIMAL)
    for path, value in fields.items():
        *parents, last = path.split("__")
        node = spec
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return spec


def _canary(**fields: Any) -> dict[str, Any]:
    return {"canary": fields}


ARMS_WITHOUT_TARGET_ONLY = [{"name": "Stable"}, {"name": "Candidate"}]

REFUSED = (
    Refused(
        "pinned without a version", "Speculator", with_fields(mode="Pinned"), "pinnedVersion is given exactly when"
    ),
    Refused("a pin in mode Auto", "Speculator", with_fields(pinnedVersion=3), "pinnedVersion is given exactly when"),
    Refused(
        "two devices for the reference engine",
        "Speculator",
        with_fields(serving__tensorParallelSize=2),
        "tensorParallelSize must be 1",
    ),
    Refused(
        "reference options on another engine",
        "Speculator",
        with_fields(engine={"type": "sglang", "reference": {"dtype": "float32"}}),
        "reference has options of the reference engine",
    ),
    Refused(
        "a chain with a wrong number of nodes",
        "Speculator",
        with_fields(drafter__steps=3, drafter__draftTokens=9),
        "draftTokens is steps + 1",
    ),
    Refused(
        "a rollback to nowhere",
        "Speculator",
        with_fields(rollout={"action": {"id": "1", "type": "Rollback"}}),
        "Rollback needs the version",
    ),
    Refused(
        "fewer steps at most than at least",
        "Speculator",
        with_fields(adaptive={"minSteps": 4, "maxSteps": 2}),
        "minSteps is above maxSteps",
    ),
    Refused(
        "a variable with two values",
        "Speculator",
        with_fields(engine__env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]),
        "set value or valueFrom, not both",
    ),
    Refused(
        "a target in the image",
        "Speculator",
        with_fields(target={"model": "file:///models/x"}),
        "file:// is for tests of the operator only",
        only_server=True,
    ),
    Refused(
        "a name that makes pod labels too long",
        "Speculator",
        MINIMAL,
        "at most 45 characters",
        metadata_name="a" * 46,
        only_server=True,
    ),
    Refused(
        "a name that no Service can have",
        "Speculator",
        MINIMAL,
        "must begin with a letter",
        metadata_name="7b.chat",
        only_server=True,
    ),
    Refused(
        "another bucket",
        "Speculator",
        with_fields(storage__s3__bucket="elsewhere"),
        "bucket and prefix are fixed",
        before=MINIMAL,
    ),
    Refused(
        "another prefix",
        "Speculator",
        with_fields(storage__s3__prefix="elsewhere"),
        "bucket and prefix are fixed",
        before=MINIMAL,
    ),
    Refused(
        "another target while it is fixed",
        "Speculator",
        with_fields(target__model="s3://models/other"),
        "model and revision are fixed",
        before=MINIMAL,
    ),
    Refused(
        "another vocabulary size",
        "Speculator",
        with_fields(drafter__draftVocabSize=100),
        "fixed for a lineage",
        before=MINIMAL,
    ),
    Refused(
        "an action changed under its id",
        "Speculator",
        with_fields(rollout={"action": {"id": "1", "type": "Abort"}}),
        "give a new id",
        before=with_fields(rollout={"action": {"id": "1", "type": "Promote"}}),
    ),
    Refused("washout as long as the block", "SyncPolicy", _canary(block="5s", washout="5s"), "washout must be shorter"),
    Refused(
        "holdback washout as long as the block",
        "SyncPolicy",
        {"holdback": {"block": "5s", "washout": "1m"}},
        "washout must be shorter",
    ),
    Refused(
        "no target-only arm", "SyncPolicy", _canary(arms=ARMS_WITHOUT_TARGET_ONLY), "must have Candidate and TargetOnly"
    ),
    Refused("alpha of one half", "SyncPolicy", _canary(alpha="0.5"), "alpha must be above 0 and below 0.5"),
    Refused("alpha of zero", "SyncPolicy", _canary(alpha="0"), "alpha must be above 0 and below 0.5"),
    Refused(
        "a threshold of zero",
        "SyncPolicy",
        _canary(minSpeedupOverStable="0.0"),
        "speedup thresholds are ratios above 0",
    ),
    Refused(
        "fewer pairs than the burn-in", "SyncPolicy", _canary(burnInPairs=20, maxPairs=20), "maxPairs must be above"
    ),
    Refused(
        "a step of replicas and percent",
        "SyncPolicy",
        _canary(steps=[{"replicas": 1, "percent": 5}]),
        "either replicas or percent",
    ),
    Refused("a step of nothing", "SyncPolicy", _canary(steps=[{}]), "either replicas or percent"),
    Refused(
        "recovery below the fall",
        "SyncPolicy",
        {"fallback": {"threshold": "1.2", "recoverThreshold": "1.1"}},
        "recoverThreshold must be at least threshold",
    ),
    Refused(
        "a learning rate of zero",
        "TrainingPolicy",
        {"optimizer": {"learningRate": "0.0"}},
        "learning rates must be above",
    ),
    Refused(
        "a decay without an end",
        "TrainingPolicy",
        {"optimizer": {"decaySteps": 10}},
        "finalLearningRate and decaySteps belong together",
    ),
    Refused("more than all requests", "TrainingPolicy", {"capture": {"share": "1.5"}}, "share must be between 0 and 1"),
    Refused("no quota", "TrainingPolicy", {"buffer": {"domainQuota": "0"}}, "domainQuota must be above 0"),
    Refused(
        "more corpus than batch",
        "TrainingPolicy",
        {"offline": {"source": "s3://archive/x", "share": "2"}},
        "share must be between 0 and 1",
    ),
)
"""Every rule of the models has a case here; `test_models.py` sees to that."""
