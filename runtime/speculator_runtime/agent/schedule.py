"""Which arm runs in which block: a pure function of the plan's seed, so that anyone can recompute the schedule."""

import random
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

    The draw hashes seed and round (`random.Random` on a string uses sha512), so it is the same in every process and on
    every machine, and two plans whose seeds differ by one have nothing in common.
    """
    order = sorted(arms)
    random.Random(f"{seed}/{round_number}").shuffle(order)
    return tuple(order)


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
