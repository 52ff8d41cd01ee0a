"""The promises of the gate, by Monte Carlo: autocorrelated load (AR(1), rho 0.9), a look after each pair.

These are short versions; `make gate-table` runs the long ones (docs/gate.md). Seeds are fixed, so a run tests the code
and not luck; tolerances are what the binomial distribution allows for the number of runs.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from speculator_operator.gate import GatePolicy, evaluate
from speculator_runtime.contracts.plan import Arm
from support.gate_simulation import (
    CANDIDATE,
    STABLE,
    Decided,
    Drafter,
    World,
    as_blocks,
    canary_runs,
    looks,
    simulate,
)

ALPHA = 0.05
STEADY = World()
SHIFTING = World(mix_deviation=1.0)
QUEUEING = World(mix_deviation=1.0, mix_follows_load=3.0)


def drafter(speedup: float, **changes: float) -> Drafter:
    return Drafter((speedup,) * 4, **changes)


def assert_at_most_alpha(decided: Decided) -> None:
    """No more false promotions than alpha explains: rejects at three standard errors above it."""
    runs = len(decided.promoted_at)
    assert decided.promoted <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


class TestModel:
    def test_the_simulation_scores_and_bounds_as_the_gate_does(self) -> None:
        """What is simulated is the gate's own arithmetic: three runs, three arms, every look from 10 to 25 pairs."""
        policy = GatePolicy(min_bucket_steps=1, min_block_steps=1)
        simulated = simulate(QUEUEING, (drafter(1.1), drafter(1.2)), 3, 25, seed=5)
        bounds = {0: looks(simulated, policy, ALPHA), 1: looks(simulated, policy, ALPHA, other=1)}
        for run in range(3):
            for pairs in (10, 17, 25):
                report = evaluate(
                    as_blocks(simulated, run, pairs),
                    arm=Arm.CANDIDATE,
                    versions={Arm.CANDIDATE: CANDIDATE, Arm.STABLE: STABLE},
                    policy=policy,
                    alpha=ALPHA,
                )
                assert report.against_stable is not None
                for other, found in ((0, report.against_target_only), (1, report.against_stable)):
                    assert found.pairs == pairs
                    look = bounds[other]
                    assert found.mean == pytest.approx(look.mean[run, pairs - 1], abs=2e-3)
                    assert found.lower == pytest.approx(look.lower[run, pairs - 1], abs=2e-3)
                    assert found.upper == pytest.approx(look.upper[run, pairs - 1], abs=2e-3)

    def test_the_load_is_as_autocorrelated_as_stated(self) -> None:
        simulated = simulate(replace(STEADY, noise_deviation=0, bucket_noise=0), (drafter(1.0),), 200, 100, seed=1)
        load = -np.log(simulated.tokens[:, :, 0].sum(axis=-1))
        lagged = np.corrcoef(load[:, :-1].ravel(), load[:, 1:].ravel())[0, 1]
        assert lagged == pytest.approx(0.9**2, abs=0.03)


class TestFalsePromotions:
    @pytest.mark.parametrize(
        ("world", "candidate"),
        [
            pytest.param(STEADY, drafter(1.0), id="steady batch mix"),
            pytest.param(SHIFTING, drafter(1.0), id="batch mix shifts"),
            pytest.param(QUEUEING, drafter(1.0), id="batch mix follows the load"),
            pytest.param(QUEUEING, drafter(1.0, mix_shift=0.7), id="candidate sees larger batches"),
            pytest.param(QUEUEING, drafter(1.0, mix_shift=-0.7), id="candidate sees smaller batches"),
            pytest.param(replace(STEADY, heavy_tails=True), drafter(1.0), id="heavy tails"),
        ],
    )
    def test_a_drafter_at_the_bar_is_promoted_at_most_alpha_of_the_time(self, world: World, candidate: Drafter) -> None:
        assert_at_most_alpha(canary_runs(world, (candidate,), runs=300, rounds=120, seed=11))

    def test_one_as_good_as_the_stable_drafter_is_promoted_at_most_alpha_of_the_time(self) -> None:
        assert_at_most_alpha(canary_runs(SHIFTING, (drafter(1.3), drafter(1.3)), runs=300, rounds=100, seed=12))

    def test_a_bar_above_one_holds_as_well(self) -> None:
        policy = GatePolicy(min_speedup_target_only=1.1)
        assert_at_most_alpha(canary_runs(STEADY, (drafter(1.1),), runs=300, rounds=120, seed=13, policy=policy))

    def test_the_simulation_can_fail_plain_sums_of_time_promote_a_drafter_that_only_shifts_the_mix(self) -> None:
        candidate = (drafter(1.0, mix_shift=0.7),)
        fooled = canary_runs(QUEUEING, candidate, runs=150, rounds=100, seed=11, plain_sums=True)
        assert fooled.promoted > 0.15


class TestPower:
    @pytest.mark.parametrize("world", [STEADY, SHIFTING], ids=["steady", "shifting"])
    def test_ten_percent_faster_is_promoted_within_40_pairs(self, world: World) -> None:
        decided = canary_runs(world, (drafter(1.1),), runs=300, rounds=80, seed=21)
        assert decided.median_promoted_at <= 40
        assert decided.promoted > 0.99

    def test_ten_percent_slower_is_never_promoted_and_soon_rejected(self) -> None:
        decided = canary_runs(STEADY, (drafter(0.9),), runs=1000, rounds=60, seed=22)
        assert decided.promoted == 0
        assert not decided.crossed.any()
        assert decided.median_rejected_at <= 40
