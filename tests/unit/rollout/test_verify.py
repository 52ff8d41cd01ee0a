"""Anyone can recompute a decision from its evidence, and a changed ledger is noticed."""

import random

import pytest

from speculator_operator.rollout import ActionType, oldest_generation, verify_record
from speculator_operator.rollout.evidence import seen, through
from speculator_runtime.contracts.ledger import Verdict, VerdictRecord
from support.rollout_world import World, ref


def ended(world: World) -> bool:
    return world.state.candidate is None


@pytest.fixture
def promoted() -> World:
    """Version 2 has taken version 1's place."""
    world = World()
    world.promote_first()
    world.publish(2, 1.6)
    world.run(60, lambda w: w.state.stable == ref(2))
    return world


class TestAgrees:
    def test_with_promotions_whatever_order_the_evidence_comes_in(self, promoted: World) -> None:
        evidence = promoted.evidence[:]
        random.Random(1).shuffle(evidence)
        agrees, said = verify_record(promoted.history[-1], evidence)
        assert agrees, said
        assert "Promote, the speedup is at least" in said

    def test_though_blocks_were_stored_after_the_decision(self, promoted: World) -> None:
        record = promoted.history[-1]
        promoted.speeds[2] = 0.5
        promoted.serve(20)
        assert verify_record(record, promoted.evidence)[0]

    @pytest.mark.parametrize(
        ("speedup", "accept_length", "failing", "reason"),
        [
            (0.8, 1.5, False, "SlowerThanTargetOnly"),
            (1.15, 1.5, False, "SlowerThanStable"),
            (1.0, 1.02, False, "AcceptLengthCollapsed"),
            (1.6, 1.5, True, "ErrorRate"),
        ],
    )
    def test_with_rejections_of_every_kind(
        self, speedup: float, accept_length: float, failing: bool, reason: str
    ) -> None:
        world = World()
        world.promote_first()
        world.accept_lengths[2] = accept_length
        if failing:
            world.failing.add(2)
        world.publish(2, speedup)
        world.run(60, ended)
        record = world.history[-1]
        assert (record.verdict, record.reason) == (Verdict.REJECTED, reason)
        agrees, said = verify_record(record, world.evidence)
        assert agrees, said

    def test_with_a_stable_drafter_that_was_kept_at_the_cap(self) -> None:
        world = World(noise=0.4)
        world.change_policy(max_seconds=1200.0)
        world.publish(1, 1.0)
        world.run(40, lambda w: bool(w.history))
        assert world.history[-1].verdict is Verdict.KEPT_STABLE
        agrees, said = verify_record(world.history[-1], world.evidence)
        assert agrees, said

    def test_with_fallback_and_recovery(self, promoted: World) -> None:
        promoted.speeds[2] = 0.7
        promoted.run(60, lambda w: w.state.fallback.active)
        promoted.speeds[2] = 1.6
        promoted.run(60, lambda w: not w.state.fallback.active)
        assert [record.verdict for record in promoted.history[-2:]] == [Verdict.FALLBACK, Verdict.RECOVERED]
        for record in promoted.history[-2:]:
            agrees, said = verify_record(record, promoted.evidence)
            assert agrees, said

    def test_with_a_fallback_after_a_holdback_longer_than_what_is_looked_at(self) -> None:
        world = World()
        world.change_policy(fallback={"window_pairs": 12, "min_pairs": 6, "min_stay_seconds": 0.0})
        world.promote_first()
        world.run(80)
        world.speeds[1] = 0.85
        world.run(60, lambda w: w.state.fallback.active)
        record = world.history[-1]
        assert record.verdict is Verdict.FALLBACK
        assert record.blocks <= 8 * 12
        agrees, said = verify_record(record, world.evidence)
        assert agrees, said

    def test_there_is_nothing_to_recompute_when_a_person_decided(self, promoted: World) -> None:
        promoted.ask(ActionType.ROLLBACK)
        agrees, said = verify_record(promoted.history[-1], [])
        assert agrees
        assert "decided by action-1 (RolledBack)" in said

    def test_records_survive_the_ledger(self, promoted: World) -> None:
        for record in promoted.history:
            stored = VerdictRecord.model_validate_json(record.model_dump_json())
            assert stored == record
            assert verify_record(stored, promoted.evidence)[0]


class TestNotices:
    def test_one_number_that_was_changed(self, promoted: World) -> None:
        record = promoted.history[-1]
        index = next(
            i for i, block in enumerate(promoted.evidence) if block in seen(promoted.evidence, _limits(record))
        )
        forged = promoted.evidence[index].model_copy(update={"requests_finished": 99})
        evidence = [*promoted.evidence[:index], forged, *promoted.evidence[index + 1 :]]
        agrees, said = verify_record(record, evidence)
        assert not agrees
        assert "its digest differs" in said

    def test_a_block_that_is_missing(self, promoted: World) -> None:
        used = seen(promoted.evidence, _limits(promoted.history[-1]))
        assert not verify_record(promoted.history[-1], used[1:])[0]

    def test_a_verdict_that_the_evidence_does_not_give(self, promoted: World) -> None:
        record = promoted.history[-1].model_copy(update={"verdict": Verdict.REJECTED})
        agrees, said = verify_record(record, promoted.evidence)
        assert not agrees
        assert "recorded was Rejected" in said

    def test_an_interval_that_was_embellished(self, promoted: World) -> None:
        record = promoted.history[-1]
        assert record.against_target_only is not None
        better = record.against_target_only.model_copy(update={"estimate": 3.0})
        assert not verify_record(record.model_copy(update={"against_target_only": better}), promoted.evidence)[0]


def _limits(record: VerdictRecord) -> str:
    limits = record.parameters["through"]
    assert isinstance(limits, str)
    return limits


def test_what_a_decision_had_seen_is_told_by_replica_and_generation(promoted: World) -> None:
    limits = through(promoted.evidence)
    assert seen(promoted.evidence, limits) == promoted.evidence
    assert seen(promoted.evidence, "") == []


def test_after_a_run_only_the_stable_drafters_blocks_are_still_open(promoted: World) -> None:
    assert oldest_generation(promoted.state) == promoted.state.fallback.from_generation
