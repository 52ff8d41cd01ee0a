"""Blocks, rests and swaps over simulated time."""

import random
from itertools import pairwise

import pytest

from speculator_runtime.agent.accounting import Replica
from speculator_runtime.agent.journal import Journal
from speculator_runtime.agent.runner import Runner
from speculator_runtime.agent.schedule import arm_order
from speculator_runtime.contracts.control import DecodeMode, DraftShape, RefusalReason
from speculator_runtime.contracts.plan import Arm, Plan, Switchback, VersionRef
from support.simulated import STEPS_PER_SECOND, SimulatedClock, SimulatedEngine, SimulationEnded, VersionsOnDisk

T, S, C = Arm.TARGET_ONLY, Arm.STABLE, Arm.CANDIDATE
STABLE = VersionRef(version=1, sha256="a" * 64)
CANDIDATE = VersionRef(version=2, sha256="b" * 64)


def plan(generation=1, arms=(T, C), **fields):
    schedule = {"block_seconds": 5.0, "washout_seconds": 1.0, "seed": 3} | fields.pop("schedule", {})
    defaults = {
        "stable": STABLE,
        "candidate": CANDIDATE,
        "switchback": Switchback(arms=arms, **schedule) if arms else None,
    }
    return Plan(generation=generation, **(defaults | fields))


class World:
    """One replica over simulated time; `run` may be called again: an agent that restarted."""

    def __init__(self, tmp_path, seconds):
        self.path = tmp_path
        self.clock = SimulatedClock(seconds)
        self.engine = SimulatedEngine(self.clock)
        self.versions = VersionsOnDisk()
        self.runner = None

    def start(self):
        self.runner = Runner(
            Replica("engine-0", "uid"), self.engine, self.versions, Journal(self.path, "uid"), self.clock
        )
        return self.runner

    async def run(self, first_plan=None):
        runner = self.runner or self.start()
        if first_plan is not None:
            runner.adopt(first_plan)
        with pytest.raises(SimulationEnded):
            await runner.run()
        self.runner = None

    def blocks(self, generation=1):
        return Journal(self.path, "uid").read(generation, after=-1)


@pytest.fixture
def world(tmp_path):
    return lambda seconds: World(tmp_path, seconds)


async def test_before_any_plan_the_replica_is_target_only(world):
    w = world(10)
    w.engine.state_now = w.engine.state_now.model_copy(update={"mode": DecodeMode.SPECULATIVE})

    await w.run()

    assert w.engine.state_now.mode is DecodeMode.TARGET_ONLY
    assert w.engine.calls == ["TargetOnly"]


async def test_blocks_follow_the_seed_and_hold_what_the_engine_did_after_the_washout(world):
    w = world(5 * 8)

    await w.run(plan())

    blocks = w.blocks()
    assert [b.index for b in blocks] == list(range(len(blocks)))
    assert len(blocks) == 7
    expected = [arm for n in range(4) for arm in arm_order(3, n, (T, C))]
    assert [b.arm for b in blocks] == expected[:7]
    for b in blocks:
        assert (b.valid, b.seconds) == (True, 4.0)
        assert b.version == (CANDIDATE if b.arm is C else None)
        assert b.buckets[4].steps == 4 * STEPS_PER_SECOND
        assert b.buckets[4].tokens == b.buckets[4].steps * 4 * (2 if b.arm is C else 1)


async def test_swaps_and_switches_cost_no_call_that_is_not_needed(world):
    w = world(5 * 7)

    await w.run(plan())

    switches = [arm for n in range(4) for arm in arm_order(3, n, (T, C))][:7]
    changes = [a for a, b in zip(switches, [T, *switches], strict=False) if a is not b]
    assert w.engine.calls == ["load 2", *[{T: "TargetOnly", C: "Speculative"}[arm] for arm in changes]]


async def test_between_rounds_the_resting_arm_runs(world):
    w = world(200)

    await w.run(plan(resting_arm=S, schedule={"rest_seconds": 60.0}))

    starts = [b.started for b in w.blocks()]
    assert [round(b - a) for a, b in pairwise(starts)][:3] == [5, 65, 5]
    assert "load 1" in w.engine.calls


async def test_after_its_last_round_the_replica_rests(world):
    w = world(100)

    await w.run(plan(resting_arm=S, schedule={"max_rounds": 2}))

    assert len(w.blocks()) == 4
    assert (w.engine.state_now.version, w.engine.state_now.mode) == (1, DecodeMode.SPECULATIVE)


async def test_a_plan_without_a_schedule_only_rests(world):
    w = world(20)

    await w.run(plan(arms=None, resting_arm=S, shape=DraftShape(steps=2, draft_tokens=3), target_only_above=8))

    state = w.engine.state_now
    assert (state.version, state.mode, state.target_only_above) == (1, DecodeMode.SPECULATIVE, 8)
    assert state.shape == DraftShape(steps=2, draft_tokens=3)
    assert w.blocks() == []


async def test_no_block_runs_before_every_arm_can(world):
    w = world(40)
    w.versions.pending = {CANDIDATE}
    w.clock.at(20, w.versions.pending.clear)

    await w.run(plan())

    assert w.blocks()[0].started >= w.clock.end - 20
    assert len(w.blocks()) == 3


async def test_while_the_resting_version_is_on_its_way_the_replica_is_target_only(world):
    w = world(10)
    w.versions.pending = {STABLE}

    await w.run(plan(arms=None, resting_arm=S))

    assert w.engine.state_now.mode is DecodeMode.TARGET_ONLY


async def test_a_refused_candidate_is_reported_once_and_the_replica_rests(world):
    w = world(60)
    w.engine.refuses = {CANDIDATE.sha256: RefusalReason.NOT_FINITE}
    runner = w.start()

    await w.run(plan(resting_arm=S))

    assert w.versions.refused == {CANDIDATE: "NotFinite"}
    assert w.engine.calls.count("load 2") == 1
    assert [b.valid for b in w.blocks() if b.arm is C] == [False]
    assert (w.engine.state_now.version, w.engine.state_now.mode) == (1, DecodeMode.SPECULATIVE)
    assert "NotFinite: as told" in runner.last_error


async def test_a_refused_stable_version_leaves_the_replica_target_only(world):
    w = world(10)
    w.engine.refuses = {STABLE.sha256: RefusalReason.TENSOR_SHAPES}

    await w.run(plan(arms=None, resting_arm=S))

    assert w.engine.state_now.mode is DecodeMode.TARGET_ONLY


@pytest.mark.parametrize("moment", [2.0, 0.5], ids=["counted part", "washout"])
async def test_a_new_plan_ends_the_block_under_way_at_once(world, moment):
    w = world(14)
    runner = w.start()
    w.clock.at(moment, lambda: runner.adopt(plan(generation=2)))

    await w.run(plan())

    (old,) = w.blocks(1)
    assert (old.valid, old.invalid_reason) == (False, "the plan changed")
    assert [b.valid for b in w.blocks(2)] == [True, True]
    assert w.blocks(2)[0].started == pytest.approx(1000 + moment + 1)


async def test_an_engine_that_restarts_spoils_one_block_and_gets_its_version_and_mode_back(world):
    w = world(31)
    w.clock.at(7, w.engine.restart)

    await w.run(plan(arms=(S, C), resting_arm=S))

    assert [b.valid for b in w.blocks()] == [True, False, True, True, True, True]
    assert w.engine.state_now.mode is DecodeMode.SPECULATIVE


async def test_an_engine_that_restarts_while_the_replica_rests_is_put_right(world):
    w = world(20)
    w.clock.at(10, w.engine.restart)

    await w.run(plan(arms=None, resting_arm=S))

    assert w.engine.calls == ["load 1", "Speculative", "load 1", "Speculative"]


async def test_an_engine_that_is_away_costs_one_block_however_long_it_is_away(world):
    w = world(100)
    runner = w.start()
    seen = []

    def go(away):
        w.engine.away = away

    w.clock.at(7, lambda: go(True))
    w.clock.at(60, lambda: seen.append(runner.engine_error))
    w.clock.at(70, lambda: go(False))

    await w.run(plan())

    blocks = w.blocks()
    assert [b.index for b in blocks if not b.valid] == [1]
    assert seen == ["no answer"]
    assert runner.engine_error == ""
    assert blocks[2].started >= 1070


async def test_somebody_else_changing_the_mode_spoils_the_block(world):
    w = world(12)
    other = DecodeMode.SPECULATIVE if arm_order(3, 0, (T, C))[0] is T else DecodeMode.TARGET_ONLY

    def meddle():
        w.engine.state_now = w.engine.state_now.model_copy(update={"mode": other})

    w.clock.at(2, meddle)

    await w.run(plan())

    assert f"mode {other}" in w.blocks()[0].invalid_reason


async def test_a_restarted_agent_goes_on_with_the_block_that_was_lost(world):
    w = world(12.5)
    await w.run(plan())
    assert [b.index for b in w.blocks()] == [0, 1]

    w.clock.end += 16
    await w.run()

    blocks = w.blocks()
    assert [b.index for b in blocks] == [0, 1, 2, 3, 4]
    assert [b.arm for b in blocks] == [arm for n in range(3) for arm in arm_order(3, n, (T, C))][:5]
    assert blocks[2].started == pytest.approx(1012.5 + 1)


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_restarts_whenever_nothing_is_counted_twice(world, seed):
    """Agent and engine are killed, plans change, all at random; blocks never overlap and never exceed what happened."""
    chance = random.Random(seed)
    w = world(0)
    generation = 1
    w.start().adopt(plan(generation, arms=(T, S, C), resting_arm=S))
    for _ in range(25):
        runner = w.runner or w.start()
        w.clock.end = w.clock.now + chance.uniform(0.2, 12)
        if chance.random() < 0.4:
            w.clock.at(w.clock.now - 1000 + chance.uniform(0, 10), w.engine.restart)
        if chance.random() < 0.3:
            generation += 1
            new = plan(generation, arms=(T, S, C), resting_arm=S)
            w.clock.at(w.clock.now - 1000 + chance.uniform(0, 10), lambda new=new: w.runner and w.runner.adopt(new))
        await w.run()
        del runner

    blocks = [b for g in range(1, generation + 1) for b in w.blocks(g)]
    for g in range(1, generation + 1):
        assert [b.index for b in w.blocks(g)] == list(range(len(w.blocks(g))))
    counted = sorted((b.started, b.started + b.seconds) for b in blocks if b.valid)
    assert len(counted) > 3
    assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(counted))
    for b in blocks:
        if b.valid:
            assert b.seconds == pytest.approx(4.0)
            assert b.buckets[4].steps == pytest.approx(4 * STEPS_PER_SECOND, abs=1)
            assert b.buckets[4].tokens == b.buckets[4].steps * 4 * (1 if b.arm is T else 2)
