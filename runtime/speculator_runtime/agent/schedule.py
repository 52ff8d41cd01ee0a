"""Which arm runs in which block: a pure function of the plan's seed, so that anyone can recompute the schedule."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from speculator_runtime.contracts.plan import Arm, Plan


@dataclass(frozen=True)
class Slot:
    """One block of the schedule. `index` grows by one per block; `last` ends the round."""

    index: int
    round: int
    arm: Arm
    last: bool


def arm_order(seed: int, round_number: int, arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms of a round in the order drawn for it; every order is equally likely, rounds are independent.

    Arms are sorted by the sha256 of `SEED/ROUND/ARM`: the same in every process, language and release, and two plans
    whose seeds differ by one have nothing in common.
    """
    return tuple(sorted(arms, key=lambda arm: hashlib.sha256(f"{seed}/{round_number}/{arm.value}".encode()).digest()))


def slot(plan: Plan, index: int) -> Slot | None:
    """The block with this index under a plan; None when the plan has no schedule, or it has ended."""
    switchback = plan.switchback
    if switchback is None:
        return None
    round_number, position = divmod(index, len(switchback.arms))
    if switchback.max_rounds is not None and round_number >= switchback.max_rounds:
        return None
    order = arm_order(switchback.seed, round_number, switchback.arms)
    return Slot(index, round_number, order[position], position == len(order) - 1)
