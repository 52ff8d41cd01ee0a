"""What users of canary operators complained of. Each test is named after what must not happen here."""

import json
from datetime import timedelta

import pytest

from speculator_operator.rollout import (
    Action,
    ActionType,
    CanaryStep,
    Mode,
    RunState,
    SafeState,
    advance,
    machine,
)
from speculator_operator.rollout.records import make_record
from speculator_operator.rollout.state import REJECTED_KEPT
from speculator_runtime.contracts.ledger import Verdict, VerdictRecord
from speculator_runtime.contracts.plan import Arm
from support.rollout_world import World, ref


@pytest.fixture
def serving() -> World:
    """Version 1 is stable at 1.3."""
    world = World()
    world.promote_first()
    return world


def resting(world: World) -> set[Arm]:
    assert world.outcome is not None
    return {plan.resting_arm for plan in world.outcome.plans.values()}


def ended(world: World) -> bool:
    return world.state.candidate is None


class TestAbort:
    def test_an_abort_followed_by_a_new_version_does_not_take_serving_down(self, serving: World) -> None:
        serving.publish(2)
        serving.run(4)
        serving.ask(ActionType.ABORT)
        serving.publish(3, 1.6)
        serving.look()
        assert resting(serving) == {Arm.STABLE}
        serving.run(60, lambda w: w.state.stable == ref(3))
        assert serving.state.stable == ref(3)

    def test_an_aborted_version_does_not_come_back_by_itself(self, serving: World) -> None:
        serving.publish(2)
        serving.run(4)
        serving.ask(ActionType.ABORT)
        serving.run(30)
        assert serving.state.candidate is None
        assert serving.history[-1].verdict is Verdict.ABORTED

    def test_an_abort_is_not_ignored_while_pods_fail(self, serving: World) -> None:
        serving.publish(2)
        serving.run(4)
        serving.replicas[0].ready = serving.replicas[0].reachable = False
        outcome = serving.ask(ActionType.ABORT)
        assert serving.state.candidate is None
        assert outcome.plans["uid-0"].candidate is None

    def test_an_abort_while_the_ledger_is_away_stops_the_candidate_at_once_and_is_recorded_later(
        self, serving: World
    ) -> None:
        serving.publish(2)
        serving.run(4)
        serving.ledger_problem = "s3.example refuses connections"
        outcome = serving.ask(ActionType.ABORT)
        assert outcome.plans["uid-0"].candidate is None
        assert "s3.example refuses connections" in outcome.message
        serving.ledger_problem = ""
        serving.look()
        assert serving.history[-1].verdict is Verdict.ABORTED

    def test_abort_is_not_done_to_another_version_than_the_one_meant(self, serving: World) -> None:
        serving.publish(2)
        serving.run(2)
        serving.ask(ActionType.ABORT, 7)
        assert serving.state.candidate is not None
        assert serving.state.last_action is not None
        assert not serving.state.last_action.accepted
        assert "the candidate is version 2, not 7" in serving.state.last_action.message


class TestDeadlines:
    def test_pods_that_fail_do_not_make_the_deadline_be_ignored(self, serving: World) -> None:
        serving.publish(2)
        serving.look()
        serving.replicas[0].ready = serving.replicas[0].reachable = False
        serving.now += timedelta(hours=1)
        serving.look()
        assert serving.history[-1].verdict is Verdict.KEPT_STABLE
        assert serving.history[-1].reason == "NotLoaded"

    def test_a_model_is_not_in_transit_for_hours_without_a_reason_shown(self, serving: World) -> None:
        serving.unfetchable[2] = "disk is full: 1.2 GiB needed, 0.3 GiB free"
        serving.publish(2)
        serving.look()
        outcome = serving.look()
        assert outcome.reason == "Loading"
        assert "demo-engine-0: disk is full" in outcome.message

    def test_replicas_that_do_not_answer_are_named(self, serving: World) -> None:
        serving.publish(2)
        serving.run(4)
        serving.replicas[0].reachable = False
        outcome = serving.look()
        assert "no answer from demo-engine-0" in outcome.message


class TestEvidence:
    def test_an_empty_metric_does_not_abort_with_a_cryptic_error(self, serving: World) -> None:
        serving.publish(2)
        serving.look()
        serving.evidence.clear()
        outcome = serving.look()
        assert serving.state.candidate is not None
        assert outcome.message

    def test_an_inconclusive_run_is_never_promoted(self) -> None:
        world = World(noise=0.4)
        world.promote_first(1, 2.0)
        world.publish(2, 2.0)
        world.run(200, ended)
        assert world.history[-1].verdict is Verdict.KEPT_STABLE
        assert world.state.stable == ref(1)

    def test_a_threshold_breached_in_a_steps_pause_is_acted_on(self, serving: World) -> None:
        serving.change_policy(steps=[CanaryStep(replicas=1, pause_seconds=86400).model_dump()])
        serving.publish(2, 1.6)
        serving.run(40, lambda w: bool(w.outcome and w.outcome.reason == "StepPause"))
        serving.failing.add(2)
        serving.run(30, ended)
        assert serving.history[-1].reason == "ErrorRate"

    def test_a_slow_stable_drafter_falls_back_even_while_rollouts_are_paused(self, serving: World) -> None:
        serving.paused = True
        serving.speeds[1] = 0.7
        assert serving.run(30, lambda w: w.state.fallback.active) < 30
        assert serving.outcome is not None
        assert serving.outcome.safe_state is SafeState.TARGET_ONLY

    def test_evidence_of_an_earlier_try_is_not_counted_again(self, serving: World) -> None:
        serving.publish(2, 0.9)
        serving.run(60, ended)
        before = len(serving.evidence)
        assert before > 20
        serving.speeds[2] = 1.7
        serving.ask(ActionType.RETRY, 2)
        assert serving.outcome is not None
        assert serving.outcome.canary is not None
        assert serving.outcome.canary.against_target_only.pairs == 0
        serving.run(40, lambda w: w.state.stable == ref(2))
        assert serving.state.stable == ref(2)

    def test_a_drafter_whose_answers_collapse_is_not_kept_until_the_statistics_speak(self, serving: World) -> None:
        serving.accept_lengths = {1: 1.9, 2: 1.02}
        serving.publish(2, 1.0)
        rounds = serving.run(30, ended)
        assert serving.history[-1].reason == "AcceptLengthCollapsed"
        assert rounds < 5


class TestSuperseding:
    def test_superseding_in_mid_rollout_does_not_stick_both(self, serving: World) -> None:
        serving.publish(2, 0.9)
        serving.run(3)
        serving.publish(3, 1.6)
        serving.run(120, lambda w: w.state.stable == ref(3))
        assert serving.state.stable == ref(3)
        assert serving.state.candidate is None

    def test_a_rollback_in_mid_rollout_does_not_stop_serving_and_gives_the_candidate_a_new_run(
        self, serving: World
    ) -> None:
        serving.publish(2, 1.6)
        serving.run(60, lambda w: w.state.stable == ref(2))
        serving.publish(3, 1.9)
        serving.run(3)
        serving.ask(ActionType.ROLLBACK, 1)
        assert serving.state.stable == ref(1)
        assert resting(serving) == {Arm.STABLE}
        serving.run(60, lambda w: w.state.stable == ref(3))
        assert serving.state.stable == ref(3)

    def test_a_version_rolled_back_from_is_not_tried_again_by_itself(self, serving: World) -> None:
        serving.publish(2, 1.6)
        serving.run(60, lambda w: w.state.stable == ref(2))
        serving.ask(ActionType.ROLLBACK)
        assert serving.state.stable == ref(1)
        serving.run(30)
        assert serving.state.candidate is None


class TestRetry:
    def test_the_same_version_can_be_retried(self, serving: World) -> None:
        serving.publish(2, 0.9)
        serving.run(60, ended)
        serving.ask(ActionType.RETRY)
        assert serving.state.candidate is not None
        assert serving.state.candidate.version == ref(2)

    def test_a_retry_waits_for_the_candidate_under_way(self, serving: World) -> None:
        serving.publish(2, 0.9)
        serving.run(60, ended)
        serving.publish(3, 0.9)
        serving.run(2)
        serving.ask(ActionType.RETRY, 2)
        assert serving.state.candidate is not None
        assert serving.state.candidate.version == ref(3)
        serving.run(60, lambda w: w.state.candidate is not None and w.state.candidate.version == ref(2))
        assert serving.state.candidate.version == ref(2)

    def test_a_retry_is_not_held_up_by_the_cool_down(self, serving: World) -> None:
        serving.change_policy(cool_down_seconds=86400.0)
        serving.now += timedelta(days=2)
        serving.publish(2, 0.9)
        serving.run(60, lambda w: w.state.considered == 2 and ended(w))
        serving.ask(ActionType.RETRY, 2)
        assert serving.state.candidate is not None


class TestRefusedActions:
    @pytest.mark.parametrize(
        ("kind", "version", "said"),
        [
            (ActionType.PROMOTE, None, "there is no candidate"),
            (ActionType.ABORT, None, "there is no candidate"),
            (ActionType.RETRY, None, "no version was rejected"),
            (ActionType.RETRY, 9, "version 9 is not in the ledger"),
            (ActionType.RETRY, 1, "version 1 is the stable one"),
            (ActionType.ROLLBACK, None, "name a version"),
            (ActionType.ROLLBACK, 9, "no version 9"),
            (ActionType.ROLLBACK, 1, "is the stable one already"),
        ],
    )
    def test_an_action_that_cannot_be_done_is_refused_with_a_sentence(
        self, serving: World, kind: ActionType, version: int | None, said: str
    ) -> None:
        before = serving.state
        outcome = serving.ask(kind, version)
        echo = serving.state.last_action
        assert echo is not None
        assert not echo.accepted
        assert said in echo.message
        assert [event.reason for event in outcome.events] == ["ActionRefused"]
        assert serving.state.stable == before.stable

    def test_a_rollback_is_never_blind(self, serving: World) -> None:
        serving.publish(2, 1.6)
        serving.run(60, lambda w: w.state.stable == ref(2))
        old = serving.versions[1]
        serving.versions[1] = old.model_copy(update={"target": old.target.model_copy(update={"digest": "u" * 64})})
        serving.ask(ActionType.ROLLBACK, 1)
        assert serving.state.stable == ref(2)
        assert serving.state.last_action is not None
        assert "does not fit" in serving.state.last_action.message

    def test_a_rollback_does_not_bring_a_rejected_version_back_ungated(self, serving: World) -> None:
        serving.publish(2, 0.9)
        serving.run(60, ended)
        serving.ask(ActionType.ROLLBACK, 2)
        assert serving.state.stable == ref(1)
        assert serving.state.last_action is not None
        assert "Retry it instead" in serving.state.last_action.message

    def test_promote_does_not_make_a_version_stable_that_an_engine_refused(self, serving: World) -> None:
        serving.publish(2)
        serving.run(2)
        serving.refused[2] = "NotFinite"
        serving.ask(ActionType.PROMOTE)
        assert serving.state.stable == ref(1)
        assert serving.history[-1].verdict is Verdict.REJECTED

    def test_promote_without_a_known_target_is_refused(self, serving: World) -> None:
        serving.publish(2)
        serving.run(2)
        serving.target = None
        serving.ask(ActionType.PROMOTE)
        assert serving.state.stable == ref(1)

    def test_promote_of_another_version_than_the_candidate_is_refused(self, serving: World) -> None:
        serving.publish(2)
        serving.run(2)
        serving.ask(ActionType.PROMOTE, 1)
        assert serving.state.last_action is not None
        assert "the candidate is version 2, not 1" in serving.state.last_action.message


class TestRestarts:
    def test_an_action_does_not_run_twice(self, serving: World) -> None:
        serving.publish(2, 1.6)
        serving.run(60, lambda w: w.state.stable == ref(2))
        serving.ask(ActionType.ROLLBACK)
        for _ in range(3):
            serving.look()
        assert serving.state.stable == ref(1)
        assert [r.reason for r in serving.history].count("RolledBack") == 1

    @pytest.mark.parametrize("kind", [ActionType.PROMOTE, ActionType.ABORT, ActionType.ROLLBACK])
    def test_an_operator_killed_between_the_verdict_and_the_status_does_not_do_it_again(
        self, serving: World, kind: ActionType
    ) -> None:
        serving.publish(2, 1.6)
        serving.run(60, lambda w: w.state.stable == ref(2))
        serving.publish(3)
        serving.run(2)
        serving.action = Action("once", kind)
        serving.look(keep_state=False)
        written = list(serving.history)
        serving.look()
        assert serving.history == written
        assert serving.state.last_action is not None
        assert (serving.state.last_action.id, serving.state.last_action.accepted) == ("once", True)

    def test_an_operator_killed_after_its_verdict_does_not_decide_otherwise(self, serving: World) -> None:
        serving.publish(2, 1.6)
        while True:
            killed = advance(serving.state, serving.inputs())
            if killed.verdicts:
                break
            serving.look()
            serving.serve()
        serving.history += killed.verdicts
        serving.speeds[2] = 0.5
        serving.serve(20)
        outcome = serving.look()
        assert outcome.verdicts == ()
        assert serving.state.stable == ref(2)

    def test_a_deleted_and_created_again_speculator_finds_its_history(self, serving: World) -> None:
        serving.publish(2, 0.9)
        serving.run(60, ended)
        generation = serving.state.generation
        serving.state = RunState()
        serving.look()
        assert serving.state.stable == ref(1)
        assert [entry.version for entry in serving.state.rejected] == [2]
        assert serving.state.ordinal == 2
        assert serving.state.candidate is None
        assert serving.state.generation > generation

    def test_a_status_that_was_lost_does_not_give_agents_a_generation_they_have(self, serving: World) -> None:
        known = serving.replicas[0].plan
        assert known is not None
        serving.state = RunState()
        serving.history.clear()
        outcome = serving.look()
        assert outcome.plans["uid-0"].generation > known.generation

    def test_nothing_is_written_when_nothing_changed(self, serving: World) -> None:
        serving.look()
        before = serving.state
        for _ in range(5):
            serving.now += timedelta(seconds=5)
            outcome = serving.look()
            assert (outcome.events, outcome.verdicts) == ((), ())
        assert serving.state == before

    def test_a_canary_that_gathers_pairs_does_not_write_the_status_each_time(self, serving: World) -> None:
        serving.publish(2, 1.33)
        serving.run(3)
        before = serving.state
        serving.serve(2)
        serving.look()
        assert serving.state == before


class TestFleet:
    def test_scaling_up_and_down_does_not_make_the_canary_oscillate(self) -> None:
        world = World()
        world.scale(4)
        world.publish(1, 1.02)
        world.look()
        generation = world.state.generation
        for replicas in (6, 3, 8, 2, 5):
            world.scale(replicas)
            world.look()
            world.serve()
        assert world.state.generation == generation
        assert world.state.candidate is not None
        assert world.state.candidate.pods == ("demo-engine-0",)

    def test_a_canary_replica_that_is_replaced_goes_on_without_losing_what_was_measured(self, serving: World) -> None:
        serving.publish(2, 1.33)
        serving.run(6)
        assert serving.outcome is not None
        assert serving.outcome.canary is not None
        before = serving.outcome.canary.against_target_only.pairs
        serving.restart_pod(0)
        serving.look()
        serving.serve()
        outcome = serving.look()
        assert outcome.canary is not None
        assert outcome.canary.against_target_only.pairs == before + 1

    def test_a_crashing_candidate_does_not_move_on_to_crash_the_next_replica(self) -> None:
        world = World()
        world.scale(3)
        world.publish(1)
        world.run(2)
        world.replicas[0].ready = False
        outcome = world.look()
        assert [plan.candidate is not None for plan in outcome.plans.values()] == [True, False, False]

    def test_a_canary_begins_on_a_ready_replica(self) -> None:
        world = World()
        world.scale(3)
        world.replicas[0].ready = False
        world.publish(1)
        world.look()
        assert world.state.candidate is not None
        assert world.state.candidate.pods == ("demo-engine-1",)

    def test_no_spare_replica_is_needed(self) -> None:
        """One replica runs all arms in turn: no rolling update waits for a GPU that is not there."""
        world = World()
        world.promote_first()
        assert len(world.replicas) == 1

    def test_without_replicas_it_waits_and_says_so(self) -> None:
        world = World(replicas=[])
        world.publish(1)
        outcome = world.look()
        assert (outcome.reason, outcome.plans) == ("WaitingForReplicas", {})
        assert "there is no replica" in outcome.message


class TestOutages:
    def test_a_policy_that_cannot_be_resolved_parks_the_rollout_and_never_drops_the_gate(self, serving: World) -> None:
        serving.publish(2, 1.6)
        serving.run(3)
        serving.policy = None
        outcome = serving.look()
        assert outcome.reason == "PolicyUnresolved"
        assert "SyncPolicy standard was not found" in outcome.message
        serving.run(30)
        assert serving.state.stable == ref(1)
        assert resting(serving) == {Arm.STABLE}

    def test_holdback_goes_on_under_the_last_known_policy(self, serving: World) -> None:
        serving.policy = None
        serving.speeds[1] = 0.7
        assert serving.run(30, lambda w: w.state.fallback.active) < 30

    def test_without_a_ledger_nothing_is_decided_and_serving_goes_on(self, serving: World) -> None:
        serving.publish(2, 1.6)
        serving.run(3)
        serving.ledger_problem = "403 AccessDenied: the key may not list the bucket"
        serving.run(20)
        assert serving.outcome is not None
        assert serving.outcome.reason == "LedgerUnavailable"
        assert "403 AccessDenied" in serving.outcome.message
        assert serving.outcome.verdicts == ()
        assert resting(serving) == {Arm.STABLE}

    def test_a_stable_drafter_that_an_engine_refuses_does_not_count_as_serving(self, serving: World) -> None:
        serving.refused[1] = "Corrupt"
        outcome = serving.look()
        assert outcome.safe_state is SafeState.TARGET_ONLY
        assert serving.history[-1].reason == "StableRefused"
        assert outcome.plans["uid-0"].switchback is None
        serving.run(5)
        assert [r.reason for r in serving.history].count("StableRefused") == 1

    def test_a_stable_drafter_that_is_refused_after_its_fall_stays_down_without_probes(self, serving: World) -> None:
        serving.speeds[1] = 0.7
        serving.run(40, lambda w: w.state.fallback.active)
        serving.refused[1] = "Corrupt"
        outcome = serving.look()
        assert outcome.verdicts == ()
        assert outcome.plans["uid-0"].switchback is None

    def test_a_clock_set_back_by_a_year_does_not_hold_a_rollout_up_for_a_year(self, serving: World) -> None:
        serving.change_policy(cool_down_seconds=3600.0)
        serving.now -= timedelta(days=365)
        serving.publish(2)
        serving.look()
        assert serving.state.candidate is not None

    def test_a_clock_set_ahead_ends_a_canary_safely(self, serving: World) -> None:
        serving.publish(2, 1.31)
        serving.run(5)
        serving.now += timedelta(days=365)
        serving.look()
        assert serving.history[-1].verdict is Verdict.KEPT_STABLE


class TestFallback:
    def test_a_slow_stable_drafter_gives_way_and_comes_back_through_probes(self, serving: World) -> None:
        serving.speeds[1] = 0.7
        assert serving.run(40, lambda w: w.state.fallback.active) < 40
        plan = serving.look().plans["uid-0"]
        assert plan.resting_arm is Arm.TARGET_ONLY
        assert plan.switchback is not None
        assert plan.switchback.arms == (Arm.TARGET_ONLY, Arm.STABLE)
        assert serving.outcome is not None
        assert serving.outcome.reason == "FallenBack"
        serving.speeds[1] = 1.3
        assert serving.run(40, lambda w: not w.state.fallback.active) < 40
        assert [record.verdict for record in serving.history[-2:]] == [Verdict.FALLBACK, Verdict.RECOVERED]

    def test_pairs_from_before_the_fall_do_not_bring_it_back(self, serving: World) -> None:
        serving.run(25)
        serving.speeds[1] = 0.7
        serving.run(40, lambda w: w.state.fallback.active)
        outcome = serving.look()
        assert outcome.holdback is not None
        assert outcome.holdback.against_target_only.pairs == 0

    def test_a_fallback_that_is_switched_off_does_not_fall(self, serving: World) -> None:
        serving.change_policy(fallback={"enabled": False})
        serving.speeds[1] = 0.5
        serving.run(30)
        assert not serving.state.fallback.active

    def test_a_least_stay_keeps_it_from_flapping(self, serving: World) -> None:
        serving.change_policy(fallback={"min_stay_seconds": 7 * 86400.0})
        serving.speeds[1] = 0.5
        serving.run(20)
        assert not serving.state.fallback.active

    def test_a_better_candidate_can_be_promoted_while_fallen_back(self, serving: World) -> None:
        serving.speeds[1] = 0.7
        serving.run(40, lambda w: w.state.fallback.active)
        serving.publish(2, 1.4)
        serving.run(40, lambda w: w.state.stable == ref(2))
        assert not serving.state.fallback.active
        assert resting(serving) == {Arm.STABLE}

    def test_a_fallback_is_not_judged_while_a_person_has_pinned_or_switched_off(self, serving: World) -> None:
        serving.run(20)
        serving.mode = Mode.TARGET_ONLY
        assert serving.look().verdicts == ()


def test_the_status_does_not_outgrow_etcd() -> None:
    """A thousand rejections, a thousand replicas: still far below the 1.5 MiB of one object."""
    world = World()
    world.scale(1000)
    world.change_policy(steps=[CanaryStep(percent=100).model_dump()])
    for number in range(2, 1000):
        world.history.append(_rejection(number))
    world.publish(1000)
    world.look()
    world.look()
    assert world.state.candidate is not None
    assert len(world.state.candidate.pods) == 1000
    assert len(world.state.rejected) == REJECTED_KEPT
    assert len(json.dumps(world.state.to_status())) < 100_000


def _rejection(number: int) -> VerdictRecord:
    state = RunState(sequence=number)
    return make_record(state, ref(number), Verdict.REJECTED, ("SlowerThanTargetOnly", "slower"), World().now)


def test_a_loop_in_the_table_of_transitions_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "TRANSITIONS", (("always", lambda p: True),))
    with pytest.raises(RuntimeError, match="does not settle"):
        advance(RunState(), World().inputs())
