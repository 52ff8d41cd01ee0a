"""What goes into a decision about a rollout, and what comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from speculator_operator.gate.types import Decision, GateReport
from speculator_runtime.contracts.control import DraftShape
from speculator_runtime.contracts.ledger import Manifest, VerdictRecord
from speculator_runtime.contracts.plan import AgentState, Block, Plan, VersionRef

from .policy import RolloutPolicy
from .state import ActionType, RunState, SafeState


class Mode(StrEnum):
    """`Speculator.spec.mode`."""

    AUTO = "Auto"
    TARGET_ONLY = "TargetOnly"
    PINNED = "Pinned"


@dataclass(frozen=True)
class Action:
    """`Speculator.spec.rollout.action`."""

    id: str
    type: ActionType
    version: int | None = None


@dataclass(frozen=True)
class LiveTarget:
    """The target that the replicas serve, as far as it is known; None is not checked here (the engine checks it)."""

    digest: str
    hidden_size: int | None = None
    vocab_size: int | None = None
    capture_layers: tuple[int, int, int] | None = None
    algorithm: str | None = None
    draft_vocab_size: int | None = None


@dataclass(frozen=True)
class Pod:
    """An engine pod. Names are stable over restarts, uids are not."""

    name: str
    uid: str
    ready: bool


@dataclass(frozen=True)
class RolloutInputs:
    """A snapshot of the world. Order within the sequences does not matter.

    policy: None when the SyncPolicy cannot be resolved; policy_problem then says why.
    target: None while no replica has reported it.
    versions: manifests in the ledger. ledger_problem: why the ledger could not be read; then nothing is decided that
        needs it.
    agents: by pod uid; missing means unreachable.
    evidence: stored blocks of plan generations >= `oldest_generation(state)`; others are ignored. Of a long holdback
        only the latest blocks of each replica are used (8 for each pair of the fallback's window).
    history: verdict records in the ledger with sequence > state.sequence (all of them for a new state); others are
        ignored.
    """

    now: datetime
    policy: RolloutPolicy | None
    pods: Sequence[Pod]
    agents: Mapping[str, AgentState] = field(default_factory=dict)
    versions: Sequence[Manifest] = ()
    evidence: Sequence[Block] = ()
    history: Sequence[VerdictRecord] = ()
    target: LiveTarget | None = None
    mode: Mode = Mode.AUTO
    pinned_version: int | None = None
    paused: bool = False
    action: Action | None = None
    shape: DraftShape = field(default_factory=DraftShape)
    target_only_above: int | None = None
    policy_problem: str = ""
    ledger_problem: str = ""


@dataclass(frozen=True)
class RolloutEvent:
    """To be shown as a Kubernetes event; emitted on a transition only."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True)
class RolloutOutcome:
    """What to do. Apply in this order: verdicts to the ledger, state to the status, plans to the agents."""

    state: RunState
    plans: Mapping[str, Plan]
    """By pod uid, for every pod, ready or not."""
    verdicts: tuple[VerdictRecord, ...]
    events: tuple[RolloutEvent, ...]
    reason: str
    """CamelCase: what the rollout does or waits for."""
    message: str
    """One or two sentences for people; never empty."""
    safe_state: SafeState
    canary: GateReport | None = None
    """Of the candidate's run, if there is one."""
    decision: Decision | None = None
    holdback: GateReport | None = None
    """Stable against target-only, from recent blocks."""
    freeze_publishing: bool = False
    """For the trainer's directive."""
    policy_drift: bool = False
    """The current policy differs from the one pinned for the run."""
    requeue_seconds: float | None = None
    """Call again after so many seconds even if nothing changes; None: no need."""


@dataclass(frozen=True)
class PhaseReport:
    """What a SpeculatorVersion's status says."""

    phase: str
    reason: str
    message: str
    record: VerdictRecord | None = None


def ref_of(manifest: Manifest) -> VersionRef:
    """A version's reference from its manifest."""
    return VersionRef(version=manifest.version, sha256=manifest.sha256)
