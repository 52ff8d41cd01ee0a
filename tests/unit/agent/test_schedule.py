"""The schedule is a pure function of the plan: anyone can recompute it."""

from collections import Counter

from speculator_runtime.agent.schedule import arm_order, slot
from speculator_runtime.contracts.plan import Arm, Plan, Switchback, VersionRef

T, S, C = Arm.TARGET_ONLY, Arm.STABLE, Arm.CANDIDATE
REF = VersionRef(version=1, sha256="a" * 64)


def plan(arms=(T, C), **switchback):
    return Plan(
        generation=1,
        stable=REF,
        candidate=REF,
        switchback=Switchback(arms=arms, block_seconds=5, washout_seconds=1, seed=7, **switchback),
    )


def test_the_order_is_the_same_everywhere_and_for_ever():
    # Written down: another value would make old evidence impossible to recompute.
    orders = "".join(arm.value[0] for n in range(8) for arm in arm_order(7, n, (T, C)))

    assert orders == "TCCTTCTCCTCTCTCT"
    assert arm_order(7, 0, (C, T)) == arm_order(7, 0, (T, C))


def test_every_order_of_three_arms_is_equally_likely():
    counts = Counter(arm_order(1, n, (T, S, C)) for n in range(6000))

    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts.values())


def test_neighbouring_seeds_have_nothing_in_common():
    agree = sum(arm_order(1, n, (T, C)) == arm_order(2, n, (T, C)) for n in range(2000))

    assert 900 < agree < 1100


def test_each_round_runs_every_arm_once_and_indices_only_grow():
    slots = [slot(plan((T, S, C)), index) for index in range(30)]

    assert [s.round for s in slots] == [index // 3 for index in range(30)]
    for start in range(0, 30, 3):
        assert {s.arm for s in slots[start : start + 3]} == {T, S, C}
        assert [s.last for s in slots[start : start + 3]] == [False, False, True]


def test_the_schedule_ends_after_its_rounds_and_without_one_there_is_no_block():
    limited = plan(max_rounds=2)

    assert slot(limited, 3) is not None
    assert slot(limited, 4) is None
    assert slot(limited.model_copy(update={"switchback": None}), 0) is None
