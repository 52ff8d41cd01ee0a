"""Blocks as evidence: what a block says, which blocks count, and how they are paired."""

import math
import random

import numpy as np
import pytest

from speculator_operator.gate import DropReason, GatePolicy, GateReport, evaluate, evidence_sha256
from speculator_operator.gate.blocks import fit_times, target_only_times
from speculator_runtime.contracts.control import BucketCounters
from speculator_runtime.contracts.plan import Arm, Block
from support.rollout_world import block, ref

VERSIONS = {Arm.CANDIDATE: ref(2), Arm.STABLE: ref(1)}


def counters(steps: int, tokens: int, seconds: float) -> BucketCounters:
    return BucketCounters(steps=steps, sequences=tokens, tokens=tokens, seconds=seconds)


def with_buckets(base: Block, buckets: dict[int, BucketCounters]) -> Block:
    return base.model_copy(update={"buckets": buckets})


def rounds(
    count: int, speedup: float = 1.2, *, stable: float | None = None, seed: int = 0, **changes: object
) -> list[Block]:
    """Rounds on one replica; the machine's speed wanders from round to round, the same for all arms of a round."""
    rng = random.Random(seed)
    made: list[Block] = []
    for turn in range(count):
        load = math.exp(rng.gauss(0, 0.3))
        arms = [(Arm.TARGET_ONLY, 1.0, None), (Arm.CANDIDATE, speedup, ref(2))]
        if stable is not None:
            arms.append((Arm.STABLE, stable, ref(1)))
        for arm, speed, version in arms:
            speed = speed * load * math.exp(rng.gauss(0, 0.02))
            made.append(block(arm, len(made), round_=turn, speedup=speed, version=version, **changes))  # type: ignore[arg-type]
    return made


def report(blocks: list[Block], **changes: object) -> GateReport:
    policy = GatePolicy.model_validate(changes)
    return evaluate(blocks, arm=Arm.CANDIDATE, versions=VERSIONS, policy=policy, alpha=policy.alpha)


class TestTargetOnlyTimes:
    def test_with_exact_buckets_it_is_the_step_time_divided_by_the_batch(self) -> None:
        step_seconds = {1: 0.040, 4: 0.060}
        buckets = {b: counters(100, 100 * b, 100 * t) for b, t in step_seconds.items()}
        times = target_only_times([with_buckets(block(Arm.TARGET_ONLY, 0), buckets)], 10)
        assert times["uid-0"] == pytest.approx({1: 0.040, 4: 0.015})

    def test_buckets_with_too_few_steps_have_none(self) -> None:
        buckets = {1: counters(100, 100, 4.0), 8: counters(9, 72, 0.9)}
        times = target_only_times([with_buckets(block(Arm.TARGET_ONLY, 0), buckets)], 10)
        assert set(times["uid-0"]) == {1}

    def test_each_replica_has_its_own(self) -> None:
        fast, slow = block(Arm.TARGET_ONLY, 0, speedup=2.0), block(Arm.TARGET_ONLY, 0, uid="uid-1")
        times = target_only_times([fast, slow], 10)
        assert times["uid-1"][1] == pytest.approx(2 * times["uid-0"][1], rel=0.01)

    def test_a_machine_that_is_slow_when_batches_are_large_is_not_taken_for_slow_large_batches(self) -> None:
        """Two blocks, the second at twice the load and mostly at bucket 4: the ratio of the buckets stays exact."""
        tokens = np.array([[300.0, 100.0], [50.0, 400.0]])
        seconds = tokens * np.array([0.05, 0.02]) * np.array([[1.0], [2.0]])
        plain = seconds.sum(axis=0) / tokens.sum(axis=0)
        fitted = fit_times(seconds, tokens)
        assert fitted[0] / fitted[1] == pytest.approx(2.5)
        assert plain[0] / plain[1] < 1.7

    def test_over_all_its_blocks_target_only_takes_the_seconds_it_took(self) -> None:
        tokens = np.array([[300.0, 100.0], [50.0, 400.0], [0.0, 0.0]])
        seconds = np.array([[16.0, 2.5], [4.0, 15.0], [0.0, 0.0]])
        assert float((tokens @ fit_times(seconds, tokens)).sum()) == pytest.approx(seconds.sum())

    def test_buckets_that_no_block_has_together_fall_back_to_plain_sums(self) -> None:
        tokens = np.array([[100.0, 0.0], [0.0, 200.0]])
        seconds = np.array([[5.0, 0.0], [0.0, 4.0]])
        assert fit_times(seconds, tokens) == pytest.approx([0.05, 0.02])


class TestSpeedup:
    def test_the_estimate_is_the_ratio_of_throughputs_in_each_round(self) -> None:
        found = report(rounds(20, 1.25)).against_target_only
        assert found.pairs == 20
        assert math.exp(found.mean) == pytest.approx(1.25, rel=0.02)

    def test_a_load_that_both_arms_of_a_round_share_cancels(self) -> None:
        """The machine's speed varies by 30%, the differences by the 3% of two blocks' own noise."""
        assert report(rounds(40, 1.2)).against_target_only.deviation < 0.04

    def test_the_batch_mix_does_not_count_as_speed(self) -> None:
        """The candidate sees larger batches, where a token is cheaper for anyone: that is no speedup."""
        made = []
        for turn in range(12):
            share = 0.2 + 0.05 * turn
            own = {1: counters(100, 100, 4.0 * 1.0), 4: counters(60, 240, 60 * 0.06)}
            tilted = {1: counters(50, int(100 * share), 4.0 * share), 4: counters(120, 480, 120 * 0.06)}
            made.append(with_buckets(block(Arm.TARGET_ONLY, 2 * turn, round_=turn), own))
            made.append(with_buckets(block(Arm.CANDIDATE, 2 * turn + 1, round_=turn, version=ref(2)), tilted))
        assert math.exp(report(made).against_target_only.mean) == pytest.approx(1.0, abs=0.01)

    def test_buckets_without_target_only_time_are_left_out_on_both_sides_and_counted(self) -> None:
        made = rounds(12, 1.2)
        extra = [
            with_buckets(b, {**b.buckets, 32: counters(10, 20, 30.0)}) if b.arm is Arm.CANDIDATE else b for b in made
        ]
        plain, found = report(made), report(extra)
        assert found.against_target_only.mean == pytest.approx(plain.against_target_only.mean)
        assert found.dropped_tokens == 12 * 20
        assert found.buckets[32].speedup is None

    def test_the_stable_drafter_is_compared_in_the_same_rounds(self) -> None:
        found = report(rounds(15, 1.3, stable=1.2))
        assert found.against_stable is not None
        assert math.exp(found.against_stable.mean) == pytest.approx(1.3 / 1.2, rel=0.02)

    def test_without_a_stable_drafter_there_is_no_such_comparison(self) -> None:
        found = evaluate(
            rounds(12), arm=Arm.CANDIDATE, versions={Arm.CANDIDATE: ref(2)}, policy=GatePolicy(), alpha=0.05
        )
        assert found.against_stable is None

    def test_before_the_burn_in_there_is_a_mean_but_no_bound(self) -> None:
        found = report(rounds(9)).against_target_only
        assert (found.lower, found.upper) == (-math.inf, math.inf)
        assert found.interval is None
        assert found.mean > 0

    def test_empirical_bernstein_bounds_are_wider_and_say_what_was_clipped(self) -> None:
        plain = report(rounds(30, 1.5)).against_target_only
        bounded = report(rounds(30, 1.5), method="EmpiricalBernstein", bound=0.3).against_target_only
        assert bounded.clipped == 30
        assert bounded.upper - bounded.lower > plain.upper - plain.lower


class TestPairing:
    def test_only_blocks_of_one_replica_generation_and_round_are_paired(self) -> None:
        apart = [
            block(Arm.TARGET_ONLY, 0, round_=0),
            block(Arm.CANDIDATE, 1, round_=1, version=ref(2)),
            block(Arm.CANDIDATE, 0, round_=0, version=ref(2), generation=2),
            block(Arm.CANDIDATE, 0, round_=0, version=ref(2), uid="uid-1"),
        ]
        assert report(apart).against_target_only.pairs == 0

    def test_a_round_with_a_missing_arm_still_pairs_the_others(self) -> None:
        made = [b for b in rounds(12, stable=1.1) if not (b.arm is Arm.STABLE and b.round < 4)]
        found = report(made)
        assert found.against_target_only.pairs == 12
        assert found.against_stable is not None
        assert found.against_stable.pairs == 8

    def test_a_window_takes_the_latest_pairs(self) -> None:
        made = rounds(20, 1.0) + [b.model_copy(update={"generation": 2}) for b in rounds(10, 2.0, seed=1)]
        found = evaluate(
            made, arm=Arm.CANDIDATE, versions=VERSIONS, policy=GatePolicy(), alpha=0.05, latest_pairs=10
        ).against_target_only
        assert found.pairs == 10
        assert math.exp(found.mean) == pytest.approx(2.0, rel=0.05)


def _changed(name: str) -> Block:
    one = block(Arm.CANDIDATE, 99, round_=99, version=ref(2))
    other = block(Arm.TARGET_ONLY, 98, round_=99)
    bucket = one.buckets[1]
    return {
        "Invalid": one.model_copy(update={"valid": False, "invalid_reason": "engine restarted"}),
        "TooFewSteps": with_buckets(one, {1: counters(9, 9, 0.5)}),
        "NoTime": with_buckets(one, {1: counters(100, 100, 0.0)}),
        "ImpossibleNumbers": with_buckets(one, {1: bucket.model_copy(update={"seconds": math.nan})}),
        "NoTargetOnlyTime": with_buckets(one, {64: bucket}),
        "UncoveredBuckets": with_buckets(one, {1: counters(10, 10, 1.0), 64: counters(100, 100, 1.0)}),
        "OtherVersion": one.model_copy(update={"version": ref(7)}),
        "RepeatedArm": other.model_copy(update={"round": 0}),
    }[name]


class TestWhatIsDropped:
    @pytest.mark.parametrize(
        "name",
        [
            "Invalid",
            "TooFewSteps",
            "NoTime",
            "ImpossibleNumbers",
            "NoTargetOnlyTime",
            "UncoveredBuckets",
            "OtherVersion",
            "RepeatedArm",
        ],
    )
    def test_a_block_that_does_not_count_is_counted_by_reason(self, name: str) -> None:
        made = rounds(12)
        clean, found = report(made), report([*made, _changed(name)])
        assert found.dropped == {DropReason(name): 1}
        assert found.against_target_only.pairs == clean.against_target_only.pairs
        assert found.blocks == clean.blocks

    def test_a_block_seen_twice_counts_once(self) -> None:
        made = rounds(12)
        found = report([*made, *made[:6]])
        assert found.dropped == {DropReason.DUPLICATE: 6}
        assert found.against_target_only == report(made).against_target_only

    def test_two_different_blocks_of_one_identity_both_go(self) -> None:
        made = rounds(12)
        forged = made[3].model_copy(update={"seconds": 99.0})
        found = report([*made, forged])
        assert found.dropped == {DropReason.CONFLICTING: 2}
        assert found.against_target_only.pairs == 11

    def test_negative_and_infinite_counts_are_impossible(self) -> None:
        one = block(Arm.CANDIDATE, 99, round_=99, version=ref(2))
        for update in ({"seconds": math.inf}, {"seconds": -1.0}, {"tokens": -1}, {"steps": -1}):
            broken = with_buckets(one, {1: one.buckets[1].model_copy(update=update)})
            assert report([*rounds(12), broken]).dropped == {DropReason.IMPOSSIBLE_NUMBERS: 1}

    def test_without_blocks_there_are_no_pairs_and_no_numbers(self) -> None:
        found = report([])
        assert found.against_target_only.pairs == 0
        assert found.accept_length is None
        assert found.error_rate_increase is None
        assert found.ttft_ratio is None

    def test_idle_blocks_without_any_step_are_dropped(self) -> None:
        idle = [with_buckets(b, {}) for b in rounds(12)]
        assert report(idle).dropped == {DropReason.TOO_FEW_STEPS: 24}


class TestReport:
    def test_accept_length_counts_the_bonus_token(self) -> None:
        found = report(rounds(12, accept_length=1.7))
        assert found.accept_length == pytest.approx(1.7)
        assert found.domains["sql"].accept_length == pytest.approx(1.7)

    def test_buckets_show_speedup_and_accept_length(self) -> None:
        found = report(rounds(12, 1.4) + [b.model_copy(update={"generation": 2}) for b in rounds(12, 0.8, bucket=8)])
        assert found.buckets[1].speedup == pytest.approx(1.4, rel=0.1)
        assert found.buckets[8].speedup == pytest.approx(0.8, rel=0.1)
        assert found.buckets[8].accept_length == pytest.approx(1.5)

    def test_requests_of_blocks_too_short_to_time_still_count_as_failed(self) -> None:
        """A candidate under which every request fails yields no steps: that must show as errors, not vanish."""
        made = [
            with_buckets(b, {}).model_copy(update={"requests_finished": 0, "requests_failed": 3})
            if b.arm is Arm.CANDIDATE
            else b
            for b in rounds(12)
        ]
        found = report(made)
        assert found.requests_failed == 36
        assert found.error_rate_increase == pytest.approx(1.0)

    def test_time_to_first_token_is_compared_round_by_round(self) -> None:
        made = [
            b.model_copy(update={"ttft_p50_seconds": {Arm.TARGET_ONLY: 0.2, Arm.CANDIDATE: 0.3}[b.arm]})
            for b in rounds(12)
        ]
        made[0] = made[0].model_copy(update={"ttft_p50_seconds": None})
        made[2] = made[2].model_copy(update={"ttft_p50_seconds": math.nan})
        found = report(made)
        assert found.ttft_ratio == pytest.approx(1.5)
        assert found.ttft_pairs == 10


class TestDeterminism:
    def test_the_order_of_the_evidence_does_not_matter(self) -> None:
        made = rounds(15, stable=1.1) + [b.model_copy(update={"pod_uid": "uid-1"}) for b in rounds(15, seed=2)]
        shuffled = made[:]
        random.Random(1).shuffle(shuffled)
        assert report(shuffled) == report(made)
        assert evidence_sha256(shuffled) == evidence_sha256(made)

    def test_the_digest_notices_one_changed_number_and_one_missing_block(self) -> None:
        made = rounds(3)
        tampered = [made[0].model_copy(update={"requests_failed": 1}), *made[1:]]
        assert len({evidence_sha256(made), evidence_sha256(tampered), evidence_sha256(made[1:])}) == 3

    def test_a_block_stored_twice_does_not_change_the_digest(self) -> None:
        made = rounds(3)
        assert evidence_sha256([*made, made[0]]) == evidence_sha256(made)
