"""What a rollout remembers. It is small, goes into the Speculator's status as it is, and holds no statistics:
those are recomputed from evidence each time.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from speculator_operator.gate.policy import PinnedModel
from speculator_runtime.contracts.plan import VersionRef

from .policy import RolloutPolicy

REJECTED_KEPT = 50
"""Rejected digests kept in the state. Numbers up to `considered` are never tried again by themselves, so an entry that
falls off matters only if the same weights are published once more under a new number."""


class VersionPhase(StrEnum):
    """Where a version is in its life."""

    PUBLISHED = "Published"
    VALIDATING = "Validating"
    CANARY = "Canary"
    PROMOTED = "Promoted"
    SUPERSEDED = "Superseded"
    REJECTED = "Rejected"
    ABORTED = "Aborted"
    EXPIRED = "Expired"


class SafeState(StrEnum):
    """What replicas serve with when no block runs. Each is safe: serving never depends on a rollout."""

    TARGET_ONLY = "TargetOnly"
    STABLE = "Stable"
    CANDIDATE = "Candidate"


class ActionType(StrEnum):
    """What a person may ask of a rollout."""

    PROMOTE = "Promote"
    ABORT = "Abort"
    RETRY = "Retry"
    ROLLBACK = "Rollback"


class ActionEcho(PinnedModel):
    """The last action that was carried out or refused: it is never carried out again."""

    id: str
    type: ActionType
    version: int | None = None
    accepted: bool
    message: str
    at: datetime


class RejectedDigest(PinnedModel):
    """A drafter that is not tried again until somebody asks for it."""

    version: int
    sha256: str
    phase: VersionPhase = Field(description="Rejected or Aborted.")
    reason: str


class CandidateRun(PinnedModel):
    """The run of one candidate. Its policy is RunState.policy, frozen while the run lasts."""

    run_id: str
    version: VersionRef
    ordinal: int = Field(ge=1, description="k: how many candidates of this lineage were tested, this one included.")
    phase: VersionPhase = Field(description="Validating or Canary.")
    started_at: datetime
    canary_started_at: datetime | None = Field(default=None, description="When a replica first ran it.")
    first_generation: int = Field(ge=1, description="Blocks of older plan generations are not evidence of this run.")
    step: int = Field(default=0, ge=0, description="Index into the policy's steps.")
    step_first_pair: int = Field(default=0, ge=0, description="Pairs there were when the step began.")
    step_passed_at: datetime | None = Field(default=None, description="When the step's pause began.")
    pods: tuple[str, ...] = Field(default=(), description="Names of the replicas that run the canary.")
    suspended_at: datetime | None = None
    suspended_seconds: float = 0.0


class FallbackState(PinnedModel):
    """Whether the stable drafter has given way to target-only decoding."""

    active: bool = False
    reason: str = ""
    since: datetime | None = Field(default=None, description="When the present side was taken.")
    from_generation: int = Field(default=1, description="Blocks of older plan generations do not count on this side.")
    qualified_target: str = Field(
        default="", description="Digest of a target that the stable drafter was measured on, though trained on another."
    )


class RunState(PinnedModel):
    """Everything that must survive a restart of the operator. `RunState()` is the state of a new Speculator."""

    generation: int = Field(default=0, description="Of the plan in force; only grows.")
    plan_sha256: str = Field(default="", description="Over the content of the plan in force.")
    sequence: int = Field(default=0, description="Verdicts recorded so far.")
    ordinal: int = Field(default=0, description="Candidates tested so far.")
    considered: int = Field(default=0, description="Highest version number that was taken up or passed over.")
    stable: VersionRef | None = None
    previous_stable: VersionRef | None = None
    candidate: CandidateRun | None = None
    retry: VersionRef | None = Field(default=None, description="To be tried next, because somebody asked.")
    rejected: tuple[RejectedDigest, ...] = ()
    fallback: FallbackState = Field(default_factory=FallbackState)
    policy: RolloutPolicy | None = Field(default=None, description="Pinned while a run lasts, else the latest known.")
    last_run_ended: datetime | None = None
    last_action: ActionEcho | None = None
    guardrail_rejections: int = Field(default=0, description="Candidates in a row that broke a guardrail.")
    reason: str = Field(default="", description="CamelCase: what the rollout does or waits for.")
    message: str = ""

    @classmethod
    def from_status(cls, status: dict[str, Any] | None) -> "RunState":
        """From what `to_status` wrote; None or {} is a new Speculator. Raises pydantic.ValidationError."""
        return cls.model_validate(status or {})

    def to_status(self) -> dict[str, Any]:
        """JSON-ready, camelCase, without empty fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
