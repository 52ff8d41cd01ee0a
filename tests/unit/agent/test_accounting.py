"""Blocks are differences of the engine's counters, and nothing else."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculator_runtime.agent.accounting import Replica, measured_block, quantile
from speculator_runtime.agent.schedule import Slot
from speculator_runtime.contracts.control import BucketCounters, EngineStats
from speculator_runtime.contracts.plan import Arm

ME = Replica("engine-0", "uid")
SLOT = Slot(index=3, round=1, arm=Arm.CANDIDATE, last=True)


def block(before, after):
    return measured_block(ME, 5, SLOT, None, 1000.0, before, after)


def stats(epoch="e", at=0.0, buckets=None, **fields):
    return EngineStats(epoch=epoch, monotonic_seconds=at, buckets=buckets or {}, **fields)


def counters(steps, tokens, histogram=None):
    return BucketCounters(
        steps=steps, sequences=steps, tokens=tokens, seconds=steps / 8, accept_histogram=histogram or {}
    )


def test_a_block_holds_what_happened_between_its_two_readings():
    before = stats(at=10.0, buckets={1: counters(5, 5, {1: 5}), 2: counters(7, 7)}, requests_finished=3)
    after = stats(
        at=15.5,
        buckets={1: counters(9, 15, {1: 6, 2: 3}), 2: counters(7, 7), 4: counters(2, 8)},
        requests_finished=5,
        requests_failed=1,
        ttft_seconds=[9.0, 9.0, 9.0, 0.2, 0.4],
        request_tokens_per_second=[1.0, 30.0, 20.0],
    )

    found = block(before, after)

    assert (found.generation, found.index, found.round, found.arm, found.valid) == (5, 3, 1, Arm.CANDIDATE, True)
    assert found.seconds == 5.5
    assert found.buckets == {1: counters(4, 10, {1: 1, 2: 3}), 4: counters(2, 8)}
    assert (found.requests_finished, found.requests_failed) == (2, 1)
    assert (found.ttft_p50_seconds, found.ttft_p99_seconds) == (0.2, 0.4)
    assert found.request_tokens_per_second_p50 == 20.0


def test_a_block_without_traffic_is_a_block_without_steps():
    found = block(stats(at=1.0), stats(at=6.0))

    assert (found.valid, found.buckets, found.ttft_p50_seconds) == (True, {}, None)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (stats(epoch="f", at=1.0, buckets={1: counters(50, 50)}), "restarted"),
        (stats(buckets={1: counters(4, 4)}), "backwards"),
        (stats(buckets={2: counters(9, 9)}), "disappeared"),
    ],
)
def test_counters_of_an_engine_that_restarted_are_never_subtracted(after, reason):
    found = block(stats(buckets={1: counters(5, 5)}), after)

    assert not found.valid
    assert reason in found.invalid_reason
    assert found.buckets == {}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20), st.integers(0, 60)), min_size=2, max_size=30))
def test_blocks_end_to_end_add_up_to_everything_that_happened(increments):
    total: dict[int, BucketCounters] = {}
    readings = [stats()]
    for bucket, steps, tokens in increments:
        old = total.get(bucket, counters(0, 0))
        total[bucket] = counters(old.steps + steps, old.tokens + tokens)
        readings.append(stats(at=readings[-1].monotonic_seconds + 1, buckets=dict(total)))

    blocks = [block(before, after) for before, after in pairwise(readings)]

    for bucket, whole in total.items():
        parts = [b.buckets[bucket] for b in blocks if bucket in b.buckets]
        assert sum(p.steps for p in parts) == whole.steps
        assert sum(p.tokens for p in parts) == whole.tokens
        assert sum(p.seconds for p in parts) == pytest.approx(whole.seconds)


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_a_value_that_so_many_do_not_exceed(values, q):
    found = quantile(values, q)

    assert found in values
    assert sum(v <= found for v in values) >= q * len(values)
    assert sum(v < found for v in values) < q * len(values)
