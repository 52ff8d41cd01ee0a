"""What a reconcile pass wants done. Values only; `kube` carries them out in the order of the fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from speculator_runtime.contracts.ledger import VerdictRecord
from speculator_runtime.contracts.plan import Plan
from speculator_runtime.contracts.trainer import TrainerDirective


@dataclass(frozen=True)
class EventNote:
    """An event to show. `key` tells one transition from another: the same key is the same event, shown once."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str
    key: str
    action: str = "Reconcile"


@dataclass(frozen=True)
class Facts:
    """What metrics show."""

    stable: int = 0
    candidate: int = 0
    mode: str = "TargetOnly"
    phase: str = "Pending"
    speedup: float | None = None
    speedup_lower: float | None = None
    pairs: int = 0
    ready_replicas: int = 0


@dataclass(frozen=True)
class Outcome:
    """What shall be. Carried out top to bottom: a crash in between is repaired by the next pass.

    Verdicts go to the ledger before the status says so; the status goes before the plans, so that an operator that
    restarts knows every generation that an agent may have.
    """

    verdicts: tuple[VerdictRecord, ...]
    status: dict[str, Any]
    """The whole status of the Speculator; equal to the one observed when nothing changed."""
    versions: tuple[dict[str, Any], ...]
    """SpeculatorVersions with their status: those to show. Others are beyond the history limit and go."""
    plans: Mapping[str, Plan]
    """By pod uid: only those whose agent follows an older generation."""
    directive: TrainerDirective | None
    """For the trainer; None if it has it already or cannot be reached."""
    events: tuple[EventNote, ...]
    requeue_seconds: float | None
    """Look again after so many seconds at the latest; None: no need."""
    busy: bool
    """Whether things are under way, so that the operator looks often."""
    facts: Facts
