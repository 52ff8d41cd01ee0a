"""A healthy snapshot of one Speculator, so that a test of decisions states only what differs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from speculator_operator.api.speculator import Speculator
from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicySpec
from speculator_operator.reconcile.observed import LedgerView, Observed, PolicyView, VersionEntry
from speculator_runtime.contracts.control import DecodeMode
from speculator_runtime.contracts.ledger import FileEntry, Manifest
from speculator_runtime.contracts.plan import AgentState, Arm, LoadStatus, VersionRef, VersionState
from speculator_runtime.contracts.trainer import TrainerStatus
from support.samples import make_manifest

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LABELS = {"speculator.dev/speculator": "chat"}
TARGET_DIGEST = "t" * 64
QUICK = {
    "canary": {"block": "1s", "washout": "100ms", "cooldown": "0s", "burnInPairs": 2, "maxPairs": 100},
    "holdback": {"sharePercent": 0},
}


def make_speculator(status: dict[str, Any] | None = None, generation: int = 1, **spec: Any) -> Speculator:
    return Speculator.parse(
        {
            "apiVersion": "speculator.dev/v1alpha1",
            "metadata": {"name": "chat", "namespace": "ns", "uid": "uid-chat", "generation": generation},
            "spec": {"target": {"model": "hf://a/b"}, "storage": {"s3": {"bucket": "bucket"}}, **spec},
            "status": status or {},
        }
    )


def make_pod(
    name: str = "chat-engine-0", component: str = "engine", ready: bool = True, **status: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"app.kubernetes.io/component": component}},
        "status": {
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            **status,
        },
    }


def make_agent(pod: str = "chat-engine-0", generation: int = 0, **changes: Any) -> AgentState:
    state = AgentState(
        pod=pod,
        pod_uid=f"uid-{pod}",
        plan_generation=generation,
        engine_healthy=True,
        mode=DecodeMode.TARGET_ONLY,
        arm=Arm.TARGET_ONLY,
        target_digest=TARGET_DIGEST,
    )
    return state.model_copy(update=changes)


def make_entry(version: int, **changes: Any) -> VersionEntry:
    files = {"model.safetensors": FileEntry(sha256=f"{version:064x}", size=10)}
    update = {"training_policy_sha256": "a" * 64, "draft_vocab_size": 32, **changes}
    manifest: Manifest = make_manifest(version, files).model_copy(update=update)
    return VersionEntry(manifest, f"{version:064x}")


def make_observed(speculator: Speculator | None = None, **changes: Any) -> Observed:
    """One replica and a trainer, all well; the ledger was read and is empty."""
    speculator = speculator or make_speculator()
    healthy = Observed(
        now=NOW,
        speculator=speculator,
        status=speculator.status.wire(),
        training_policy=PolicyView(TrainingPolicySpec()),
        sync_policy=PolicyView(SyncPolicySpec.model_validate(QUICK), "quick", 3),
        credentials=None,
        pods=(make_pod(), make_pod("chat-trainer-0", "trainer")),
        agents={"uid-chat-engine-0": make_agent()},
        trainer=TrainerStatus(phase="Training", step=10, requests_received=5),
        ledger=LedgerView(read=True),
    )
    return replace(healthy, **changes)


def later(observed: Observed, status: dict[str, Any], seconds: float = 10.0, **changes: Any) -> Observed:
    """The next pass: the status as it was written, some seconds on."""
    spec = observed.speculator.model_dump(by_alias=True, exclude_none=True)
    spec["status"] = status
    speculator = Speculator.parse(spec)
    return replace(
        observed, speculator=speculator, status=status, now=observed.now + timedelta(seconds=seconds), **changes
    )


def loaded(ref: VersionRef) -> VersionState:
    return VersionState(ref=ref, status=LoadStatus.LOADED)
