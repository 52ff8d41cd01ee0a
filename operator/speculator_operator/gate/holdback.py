"""After promotion: is the stable drafter still faster than target-only decoding, on the latest pairs?

Going down is quick (a bound, or the median of a few pairs); coming back takes a stronger bound, from probe rounds.
The window moves, so these bounds hold for each window, not for all of them at once: `docs/gate.md` gives the rates.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from statistics import median

from speculator_runtime.contracts.plan import Arm, Block, VersionRef

from .evaluate import evaluate
from .policy import FallbackPolicy, GatePolicy
from .types import GateReport


class Move(StrEnum):
    """What to do about the stable drafter."""

    STAY = "Stay"
    DOWN = "Down"
    UP = "Up"


def evaluate_holdback(
    blocks: Iterable[Block], stable: VersionRef, gate: GatePolicy, fallback: FallbackPolicy
) -> GateReport:
    """Compare stable with target-only over the latest `window_pairs` pairs."""
    windowed = gate.model_copy(update={"burn_in_pairs": fallback.min_pairs, "tightest_at_pairs": fallback.window_pairs})
    return evaluate(
        blocks,
        arm=Arm.STABLE,
        versions={Arm.STABLE: stable},
        policy=windowed,
        alpha=fallback.alpha,
        latest_pairs=fallback.window_pairs,
    )


def judge_holdback(report: GateReport, fallback: FallbackPolicy, fallen_back: bool) -> tuple[Move, str, str]:
    """Whether to change sides: move, CamelCase reason, message with figures."""
    found = report.against_target_only
    figures = f"stable against target-only over the latest {found.pairs} pairs: estimate {math.exp(found.mean):.3f}"
    if fallen_back:
        if found.lower > math.log(fallback.up_above):
            message = f"{figures}, at least {math.exp(found.lower):.3f}; needed {fallback.up_above:.2f}"
            return Move.UP, "FasterAgain", message
        return Move.STAY, "Probing", f"{figures}; the lower bound must pass {fallback.up_above:.2f}"
    if found.upper < math.log(fallback.down_below):
        message = f"{figures}, at most {math.exp(found.upper):.3f}; the bar is {fallback.down_below:.2f}"
        return Move.DOWN, "SlowerThanTargetOnly", message
    recent = found.differences[-fallback.fast_pairs :]
    if len(recent) == fallback.fast_pairs and median(recent) < math.log(fallback.fast_below):
        message = (
            f"{figures}; the median of the last {len(recent)} pairs is {math.exp(median(recent)):.3f}, "
            f"below {fallback.fast_below:.2f}"
        )
        return Move.DOWN, "SuddenSlowdown", message
    return Move.STAY, "Holding", figures
