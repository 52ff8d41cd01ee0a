"""After promotion: when the stable drafter gives way to target-only decoding, and when it comes back."""

import math
import random

import pytest

from speculator_operator.gate import FallbackPolicy, GatePolicy, Move, evaluate_holdback, judge_holdback
from speculator_runtime.contracts.plan import Arm, Block
from support.rollout_world import block, ref


def holdback(speedups: list[float], noise: float = 0.05, seed: int = 0) -> list[Block]:
    rng = random.Random(seed)
    made: list[Block] = []
    for turn, speedup in enumerate(speedups):
        made.append(block(Arm.TARGET_ONLY, len(made), round_=turn))
        measured = speedup * math.exp(rng.gauss(0, noise))
        made.append(block(Arm.STABLE, len(made), round_=turn, speedup=measured, version=ref(1)))
    return made


def judged(
    blocks: list[Block], fallen_back: bool = False, policy: FallbackPolicy | None = None
) -> tuple[Move, str, str]:
    fallback = policy or FallbackPolicy()
    return judge_holdback(evaluate_holdback(blocks, ref(1), GatePolicy(), fallback), fallback, fallen_back)


class TestDown:
    def test_a_stable_drafter_that_pays_stays(self) -> None:
        assert judged(holdback([1.2] * 40))[:2] == (Move.STAY, "Holding")

    def test_one_that_is_surely_slower_than_target_only_falls_back(self) -> None:
        move, reason, message = judged(holdback([0.92] * 30))
        assert (move, reason) == (Move.DOWN, "SlowerThanTargetOnly")
        assert "the bar is 1.00" in message

    def test_a_sudden_slowdown_needs_only_a_few_pairs(self) -> None:
        """The bound over the window still holds the good past; the median of the last pairs does not."""
        move, reason, message = judged(holdback([1.3] * 20 + [0.7] * 5))
        assert (move, reason) == (Move.DOWN, "SuddenSlowdown")
        assert "median of the last 5 pairs is 0.6" in message

    def test_two_bad_pairs_among_good_ones_are_noise(self) -> None:
        assert judged(holdback([1.2] * 20 + [0.5, 1.2, 0.5]))[0] is Move.STAY

    def test_the_distant_past_does_not_hide_a_slow_decline(self) -> None:
        assert judged(holdback([1.3] * 200 + [0.93] * 30))[0] is Move.DOWN

    def test_without_pairs_nothing_moves(self) -> None:
        assert judged([])[0] is Move.STAY
        assert judged([], fallen_back=True)[0] is Move.STAY

    def test_blocks_of_another_version_say_nothing_about_this_one(self) -> None:
        others = [b if b.version is None else b.model_copy(update={"version": ref(9)}) for b in holdback([0.5] * 30)]
        assert judged(others)[0] is Move.STAY


class TestUp:
    def test_it_comes_back_when_probes_show_it_clearly_faster(self) -> None:
        move, reason, message = judged(holdback([1.25] * 15), fallen_back=True)
        assert (move, reason) == (Move.UP, "FasterAgain")
        assert "needed 1.05" in message

    def test_going_up_takes_a_stronger_bound_than_staying_up(self) -> None:
        """Hysteresis: at 1.03 it neither falls back nor comes back."""
        made = holdback([1.03] * 40, noise=0.02)
        assert judged(made, fallen_back=False)[0] is Move.STAY
        assert judged(made, fallen_back=True)[0] is Move.STAY

    def test_a_few_fast_probes_are_not_enough(self) -> None:
        assert judged(holdback([1.5] * 9), fallen_back=True)[:2] == (Move.STAY, "Probing")


def test_a_policy_that_would_go_up_more_easily_than_down_is_refused() -> None:
    with pytest.raises(ValueError, match=r"up_above \(0.9\) must not be below down_below \(1.0\)"):
        FallbackPolicy(up_above=0.9)
