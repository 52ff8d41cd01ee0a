"""What a person decides about a rollout, resolved from a SyncPolicy into numbers and pinned for one run."""

from enum import StrEnum

from pydantic import Field, model_validator

from speculator_operator.gate.policy import FallbackPolicy, GatePolicy, PinnedModel


class OnInconclusive(StrEnum):
    """What becomes of a candidate that is undecided at the cap. Neither promotes it; the stable drafter stays."""

    HOLD = "Hold"
    REJECT = "Reject"


class Supersede(StrEnum):
    """Which of several waiting versions is tried next."""

    LATEST = "Latest"
    QUEUE = "Queue"


class CanaryStep(PinnedModel):
    """One widening of the canary, by replicas or by percent of the ready replicas (rounded up)."""

    replicas: int | None = Field(default=None, ge=1)
    percent: int | None = Field(default=None, ge=1, le=100)
    min_pairs: int = Field(default=10, ge=1, description="New pairs seen in this step before the next one.")
    pause_seconds: float = Field(default=0.0, ge=0, description="Wait at the end of the step.")
    wait_for_promote: bool = Field(default=False, description="Wait at the end of the step for a Promote action.")

    @model_validator(mode="after")
    def _one_size(self) -> "CanaryStep":
        if (self.replicas is None) == (self.percent is None):
            raise ValueError("a canary step names either replicas or percent")
        return self

    def size(self, pods: int) -> int:
        """Replicas that run the canary when there are so many; at least one."""
        wanted = self.replicas if self.replicas is not None else -(-pods * (self.percent or 0) // 100)
        return max(1, min(pods, wanted))


class HoldbackPolicy(PinnedModel):
    """Target-only blocks that go on after promotion, so that the speedup shown is measured."""

    enabled: bool = True
    target_only_share: float = Field(
        default=0.05, gt=0, le=0.5, description="Share of a replica's time that runs target-only."
    )

    def rest_seconds(self, block_seconds: float) -> float:
        """Seconds of rest after a round of two blocks so that one of them takes the share."""
        return block_seconds * (1 / self.target_only_share - 2)


class RolloutPolicy(PinnedModel):
    """A resolved SyncPolicy. Seconds and ratios, no strings: the caller parses."""

    source: str = Field(default="", description="Where it came from, for messages: `namespace/name@generation`.")
    gate: GatePolicy = Field(default_factory=GatePolicy)
    block_seconds: float = Field(default=20.0, gt=0)
    washout_seconds: float = Field(default=2.0, ge=0)
    steps: tuple[CanaryStep, ...] = Field(default=(CanaryStep(replicas=1),), min_length=1)
    load_seconds: float = Field(default=900.0, gt=0, description="Cap on the time until a replica runs the candidate.")
    max_seconds: float = Field(default=14400.0, gt=0, description="Cap on a canary, time suspended not counted.")
    on_inconclusive: OnInconclusive = OnInconclusive.HOLD
    supersede: Supersede = Supersede.LATEST
    cool_down_seconds: float = Field(default=0.0, ge=0, description="Least time between two canaries.")
    freeze_after_guardrails: int = Field(
        default=3, ge=1, description="Freeze publishing after so many candidates in a row broke a guardrail."
    )
    holdback: HoldbackPolicy = Field(default_factory=HoldbackPolicy)
    fallback: FallbackPolicy = Field(default_factory=FallbackPolicy)

    @model_validator(mode="after")
    def _washout_leaves_time(self) -> "RolloutPolicy":
        if self.washout_seconds >= self.block_seconds:
            raise ValueError(
                f"washout_seconds ({self.washout_seconds}) must be below block_seconds ({self.block_seconds})"
            )
        return self
