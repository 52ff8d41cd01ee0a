"""What the gate answers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from speculator_runtime.contracts.ledger import Interval


class DropReason(StrEnum):
    """Why a block is not evidence."""

    INVALID = "Invalid"
    TOO_FEW_STEPS = "TooFewSteps"
    NO_TIME = "NoTime"
    IMPOSSIBLE_NUMBERS = "ImpossibleNumbers"
    NO_TARGET_ONLY_TIME = "NoTargetOnlyTime"
    UNCOVERED_BUCKETS = "UncoveredBuckets"
    OTHER_VERSION = "OtherVersion"
    DUPLICATE = "Duplicate"
    CONFLICTING = "Conflicting"
    REPEATED_ARM = "RepeatedArm"


class Outcome(StrEnum):
    """What the gate says about a candidate."""

    PROMOTE = "Promote"
    REJECT = "Reject"
    CONTINUE = "Continue"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True)
class Comparison:
    """A candidate (or the stable drafter) against one other arm.

    Log speedups are natural logarithms; lower and upper hold each with probability 1 - alpha at all times at once.
    They are -inf and inf before the burn-in; mean and deviation (of one pair) are 0 without pairs.
    """

    pairs: int
    mean: float
    deviation: float
    lower: float
    upper: float
    clipped: int = 0
    """Pairs clipped to the bound (EmpiricalBernstein only)."""
    differences: tuple[float, ...] = field(default=(), repr=False)
    """Of log speedup, pair by pair in order of (generation, round, pod uid)."""

    @property
    def interval(self) -> Interval | None:
        """As ratios; None before the burn-in, when there is no bound."""
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            return None
        return Interval(
            estimate=_ratio(self.mean), lower=_ratio(self.lower), upper=_ratio(self.upper), pairs=self.pairs
        )


def _ratio(log_speedup: float) -> float:
    """exp, kept within what a float and a reader can hold."""
    return math.exp(min(50.0, max(-50.0, log_speedup)))


@dataclass(frozen=True)
class BucketReport:
    """Speculative decoding at one batch bucket (its key: the largest number of sequences it holds)."""

    steps: int
    tokens: int
    speedup: float | None
    """Against the target-only time per token of the same bucket; None without such a time."""
    accept_length: float | None
    """Tokens per sequence and verify step, bonus included."""


@dataclass(frozen=True)
class DomainReport:
    """Speculative decoding in one domain of requests; time is not attributed to domains."""

    tokens: int
    accept_length: float | None


@dataclass(frozen=True)
class GateReport:
    """What the evidence of a run says, without a judgement."""

    against_target_only: Comparison
    against_stable: Comparison | None
    """None when there is no stable drafter to compare with."""
    buckets: Mapping[int, BucketReport]
    domains: Mapping[str, DomainReport]
    accept_length: float | None
    verify_steps: int
    """Sequence steps that `accept_length` is the mean of."""
    stable_accept_length: float | None
    stable_verify_steps: int
    blocks: int
    """Blocks used, of all arms."""
    dropped: Mapping[DropReason, int]
    dropped_tokens: int
    """Tokens of used blocks in buckets without a target-only time: left out on both sides."""
    requests: int
    requests_failed: int
    error_rate_increase: float | None
    """Share of failed requests minus that of the other arms; None without requests on both sides."""
    ttft_ratio: float | None
    """Median over rounds of median TTFT divided by that of target-only; None without such rounds."""
    ttft_pairs: int
    invalid_blocks: int
    """Of the arm under test."""
    other_invalid_blocks: int
    alpha: float


@dataclass(frozen=True)
class Decision:
    """The gate's answer, with a CamelCase reason and a message with figures."""

    outcome: Outcome
    reason: str
    message: str
    guardrail: bool = False
    """A guardrail was broken."""
