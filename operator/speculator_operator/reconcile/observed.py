"""The snapshot that a decision is made from. Values only: `kube` fills it, nothing here reads the world."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from speculator_operator.api.speculator import Speculator
from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicySpec
from speculator_runtime.contracts.ledger import Manifest, VerdictRecord
from speculator_runtime.contracts.plan import AgentState, Block
from speculator_runtime.contracts.trainer import TrainerDirective, TrainerStatus

Spec = TypeVar("Spec")


@dataclass(frozen=True)
class Problem:
    """Something that keeps a part from working: a CamelCase reason, and a message that says what to do."""

    reason: str
    message: str


@dataclass(frozen=True)
class PolicyView(Generic[Spec]):
    """A policy as it is now. `spec` is None exactly when there is a problem: it is missing or not valid."""

    spec: Spec | None
    name: str = ""
    """Empty: the Speculator names none, the defaults hold."""
    generation: int = 0
    problem: Problem | None = None


@dataclass(frozen=True)
class VersionEntry:
    """A published version as the ledger has it."""

    manifest: Manifest
    manifest_sha256: str


@dataclass(frozen=True)
class LedgerView:
    """What is known of the ledger. With a `problem` the rest is what was known before, or empty."""

    read: bool = False
    """Whether versions and history are complete: the ledger was read at least once."""
    versions: tuple[VersionEntry, ...] = ()
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Version number -> why its manifest cannot be used."""
    history: tuple[VerdictRecord, ...] = ()
    evidence: tuple[Block, ...] = ()
    problem: Problem | None = None


@dataclass(frozen=True)
class Observed:
    """Everything a pass knows about one Speculator."""

    now: datetime
    speculator: Speculator
    status: Mapping[str, Any]
    """As the API server has it, to tell whether anything changed."""
    training_policy: PolicyView[TrainingPolicySpec]
    sync_policy: PolicyView[SyncPolicySpec]
    credentials: Problem | None
    """What is wrong with the Secret that holds the S3 credentials."""
    pods: tuple[Mapping[str, Any], ...] = ()
    """Pods of this Speculator, engine and trainer, as the API server has them."""
    agents: Mapping[str, AgentState] = field(default_factory=dict)
    """By pod uid: those that answered."""
    agent_failures: Mapping[str, str] = field(default_factory=dict)
    """By pod uid: why an agent did not answer."""
    trainer: TrainerStatus | None = None
    trainer_failure: str = ""
    last_directive: TrainerDirective | None = None
    """What this operator process last wanted of the trainer."""
    ledger: LedgerView = field(default_factory=LedgerView)
    object_problems: tuple[Problem, ...] = ()
    """Objects that could not be applied in the last pass."""
    refresh_figures: bool = True
    """Whether figures that change all the time (training steps, pairs) may be brought up to date in the status."""
