"""What a person decides about the gate: bounds, thresholds, guardrails and fallback, as they are pinned for one run."""

from enum import StrEnum

from pydantic import ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from speculator_runtime.contracts.base import Contract


class PinnedModel(Contract):
    """A contract that is stored in a resource's status: camelCase there, snake_case in Python."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class AlphaSpending(StrEnum):
    """How the error probability is shared out over the candidates of a lineage."""

    PER_CANDIDATE = "PerCandidate"
    DECREASING = "Decreasing"


class BoundsMethod(StrEnum):
    """Which confidence sequence is used."""

    ASYMPTOTIC = "Asymptotic"
    EMPIRICAL_BERNSTEIN = "EmpiricalBernstein"


class GatePolicy(PinnedModel):
    """Parameters of the gate. Speedups are ratios: 1.0 is as fast as what the candidate is compared with."""

    alpha: float = Field(default=0.05, gt=0, lt=0.5, description="Probability of promoting a drafter at the bar.")
    spending: AlphaSpending = AlphaSpending.PER_CANDIDATE
    method: BoundsMethod = BoundsMethod.ASYMPTOTIC
    bound: float = Field(
        default=1.0,
        gt=0,
        description="EmpiricalBernstein only: differences of log speedup are clipped to [-bound, bound].",
    )
    min_speedup_target_only: float = Field(default=1.0, gt=0, description="The bar against target-only decoding.")
    min_speedup_stable: float = Field(default=1.0, gt=0, description="The bar against the stable drafter.")
    burn_in_pairs: int = Field(default=10, ge=2, description="Pairs before any bound is looked at.")
    tightest_at_pairs: int = Field(default=30, ge=2, description="n_star: where the bounds are tightest.")
    max_pairs: int = Field(default=200, ge=10, description="Cap: undecided after so many pairs is inconclusive.")
    min_block_steps: int = Field(default=10, ge=1, description="Blocks with fewer decode steps are dropped.")
    min_bucket_steps: int = Field(
        default=10, ge=1, description="Target-only steps a batch bucket needs before its time per token is used."
    )
    min_coverage: float = Field(
        default=0.5, gt=0, le=1, description="Least share of a block's tokens in buckets with a target-only time."
    )
    max_error_rate_increase: float = Field(
        default=0.02, gt=0, le=1, description="Guardrail: failed requests, candidate's share minus the others' share."
    )
    guardrail_requests: int = Field(default=20, ge=1, description="Candidate requests before the error rate counts.")
    max_ttft_ratio: float = Field(
        default=1.25, gt=1, description="Guardrail: median ratio of median TTFT to target-only of the same round."
    )
    guardrail_pairs: int = Field(default=5, ge=1, description="Pairs before the TTFT guardrail counts.")
    guardrail_invalid_blocks: int = Field(
        default=5,
        ge=1,
        description="Guardrail: invalid candidate blocks (engine restarts, failed swaps), if the other arms have less "
        "than half as many.",
    )

    collapse_share: float = Field(
        default=0.6,
        ge=0,
        lt=1,
        description="Guardrail: the candidate's accept length beyond the bonus token, as a share of the stable "
        "drafter's; 0 switches it off.",
    )
    collapse_verify_steps: int = Field(default=200, ge=1, description="Verified sequence steps it needs on both sides.")

    @model_validator(mode="after")
    def _burn_in_fits(self) -> "GatePolicy":
        if self.max_pairs <= self.burn_in_pairs:
            raise ValueError(f"max_pairs ({self.max_pairs}) must be above burn_in_pairs ({self.burn_in_pairs})")
        return self


class FallbackPolicy(PinnedModel):
    """When the stable drafter gives way to target-only decoding, and what brings it back."""

    enabled: bool = True
    alpha: float = Field(default=0.05, gt=0, lt=0.5, description="Of each bound, over the pairs of the window.")
    window_pairs: int = Field(default=30, ge=2, description="The latest pairs that are looked at.")
    min_pairs: int = Field(default=10, ge=2, description="Pairs before the bounds are looked at.")
    down_below: float = Field(default=1.0, gt=0, description="Fall back when the upper bound is below this speedup.")
    fast_pairs: int = Field(default=5, ge=1, description="Window of the fast rule.")
    fast_below: float = Field(default=0.8, gt=0, description="Fast rule: fall back when the window's median is below.")
    up_above: float = Field(default=1.05, gt=0, description="Recover when the lower bound is above this speedup.")
    probe_share: float = Field(
        default=0.1, gt=0, le=0.5, description="Share of a replica's time that probes the stable drafter in fallback."
    )
    min_stay_seconds: float = Field(default=60.0, ge=0, description="Least stay on either side.")

    @model_validator(mode="after")
    def _hysteresis(self) -> "FallbackPolicy":
        if self.up_above < self.down_below:
            raise ValueError(f"up_above ({self.up_above}) must not be below down_below ({self.down_below})")
        return self
