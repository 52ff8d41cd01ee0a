"""A version's life, from publication to its verdict, as one replica and a ledger see it."""

import pytest

from speculator_operator.rollout import (
    ActionType,
    CanaryStep,
    LiveTarget,
    Mode,
    OnInconclusive,
    RolloutPolicy,
    RunState,
    SafeState,
    Supersede,
    VersionPhase,
    evidence_owner,
    oldest_generation,
    version_phases,
)
from speculator_runtime.contracts.ledger import Verdict
from speculator_runtime.contracts.plan import Arm
from support.rollout_world import START, World, manifest, ref


def phase(world: World, version: int) -> str:
    return version_phases(world.state, list(world.versions.values()), world.history)[version].phase


def ended(world: World) -> bool:
    return world.state.candidate is None and world.state.considered > 0


class TestDayZero:
    def test_target_only_serves_and_the_rollout_says_what_it_waits_for(self) -> None:
        world = World()
        outcome = world.look()
        assert outcome.safe_state is SafeState.TARGET_ONLY
        assert outcome.reason == "WaitingForFirstVersion"
        plan = outcome.plans["uid-0"]
        assert (plan.resting_arm, plan.switchback, plan.generation) == (Arm.TARGET_ONLY, None, 1)

    def test_the_first_version_is_compared_with_target_only_back_to_back(self) -> None:
        world = World()
        world.publish(1)
        plan = world.look().plans["uid-0"]
        assert plan.switchback is not None
        assert plan.switchback.arms == (Arm.TARGET_ONLY, Arm.CANDIDATE)
        assert plan.switchback.rest_seconds == 0
        assert (plan.candidate, plan.stable, plan.resting_arm) == (ref(1), None, Arm.TARGET_ONLY)

    def test_published_validating_canary_promoted(self) -> None:
        world = World()
        world.publish(1, 1.3)
        seen = []
        for _ in range(14):
            world.look()
            seen.append(phase(world, 1))
            world.serve()
        assert list(dict.fromkeys(seen)) == ["Validating", "Canary", "Promoted"]
        assert [record.verdict for record in world.history] == [Verdict.PROMOTED]
        assert world.history[0].decided_by == "gate"
        assert world.history[0].alpha == 0.05
        assert world.state.stable == ref(1)

    def test_a_slower_version_is_rejected_and_target_only_goes_on(self) -> None:
        world = World()
        world.publish(1, 0.85)
        world.run(40, ended)
        assert phase(world, 1) == "Rejected"
        assert world.history[-1].reason == "SlowerThanTargetOnly"
        assert world.outcome is not None
        assert world.outcome.safe_state is SafeState.TARGET_ONLY


class TestWithAStableDrafter:
    @pytest.fixture
    def world(self) -> World:
        world = World()
        world.promote_first(1, 1.3)
        return world

    def test_it_rests_on_stable_and_holds_a_share_back(self, world: World) -> None:
        plan = world.look().plans["uid-0"]
        assert plan.resting_arm is Arm.STABLE
        assert plan.switchback is not None
        assert plan.switchback.arms == (Arm.TARGET_ONLY, Arm.STABLE)
        round_seconds = 2 * plan.switchback.block_seconds + plan.switchback.rest_seconds
        assert plan.switchback.block_seconds / round_seconds == pytest.approx(0.05)

    def test_without_holdback_no_blocks_run(self, world: World) -> None:
        world.change_policy(holdback={"enabled": False})
        assert world.look().plans["uid-0"].switchback is None

    def test_a_candidate_runs_against_both(self, world: World) -> None:
        world.publish(2)
        plan = world.look().plans["uid-0"]
        assert plan.switchback is not None
        assert plan.switchback.arms == (Arm.TARGET_ONLY, Arm.STABLE, Arm.CANDIDATE)

    def test_a_better_one_takes_its_place(self, world: World) -> None:
        world.publish(2, 1.5)
        world.run(60, lambda w: w.state.stable == ref(2))
        assert (phase(world, 1), phase(world, 2)) == ("Superseded", "Promoted")
        assert world.state.previous_stable == ref(1)
        assert world.history[-1].against_stable is not None

    def test_one_worse_than_it_is_rejected_though_faster_than_target_only(self, world: World) -> None:
        world.publish(2, 1.15)
        world.run(60, ended)
        assert (phase(world, 1), phase(world, 2)) == ("Promoted", "Rejected")
        assert world.history[-1].reason == "SlowerThanStable"

    def test_evidence_belongs_to_the_candidate_during_its_run_and_to_the_stable_one_else(self, world: World) -> None:
        world.look()
        resting = world.state.generation
        assert evidence_owner(world.state, resting) == ref(1)
        assert oldest_generation(world.state) <= resting
        world.publish(2)
        world.look()
        assert evidence_owner(world.state, world.state.generation) == ref(2)
        assert evidence_owner(RunState(), 1) is None
        assert evidence_owner(world.state, 0) is None


class TestCaps:
    @pytest.mark.parametrize(("choice", "verdict"), [("Hold", Verdict.KEPT_STABLE), ("Reject", Verdict.REJECTED)])
    def test_an_undecided_candidate_is_never_promoted(self, choice: str, verdict: Verdict) -> None:
        world = World(noise=0.3)
        world.promote_first(1, 1.6)
        world.change_policy(on_inconclusive=OnInconclusive(choice))
        world.publish(2, 1.6)
        world.run(200, ended)
        assert world.history[-1].verdict is verdict
        assert world.history[-1].reason == "Undecided"
        assert world.state.stable == ref(1)
        assert phase(world, 2) == ("Expired" if choice == "Hold" else "Rejected")

    def test_a_canary_without_traffic_ends_at_the_cap_of_time(self) -> None:
        world = World()
        world.change_policy(max_seconds=600.0)
        world.publish(1)
        world.look()
        world.replicas[0].loaded.add(ref(1))
        for _ in range(20):
            world.look()
            world.serve()
            world.evidence.clear()
        assert world.history[-1].verdict is Verdict.KEPT_STABLE
        assert world.history[-1].reason == "NoEvidence"
        assert "the cap of 600 s" in world.history[-1].message

    def test_time_that_is_suspended_does_not_count(self) -> None:
        world = World(noise=0.4)
        world.change_policy(max_seconds=1200.0)
        world.publish(1, 1.0)
        world.run(3)
        world.paused = True
        for _ in range(40):
            world.look()
            world.serve()
        world.paused = False
        world.look()
        assert world.state.candidate is not None
        assert world.state.candidate.suspended_seconds >= 2000

    def test_a_version_that_no_replica_can_load_expires_and_says_what_replicas_said(self) -> None:
        world = World(unfetchable={1: "connect timeout to s3.example"})
        world.publish(1)
        world.run(15)
        assert world.history[-1].reason == "NotLoaded"
        assert "connect timeout to s3.example" in world.history[-1].message
        assert phase(world, 1) == "Expired"


class TestCompatibility:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"digest": "u" * 64}, "it was trained for target uuuu"),
            ({"hidden_size": 128}, "its hidden size is 128, the replicas have 64"),
            ({"vocab_size": 999}, "its vocabulary size is 999"),
            ({"capture_layers": (2, 5, 9)}, "its captured layers is (2, 5, 9)"),
            ({"algorithm": "EAGLE2"}, "its algorithm is EAGLE2"),
            ({"draft_vocab_size": 128}, "its draft vocabulary is 128"),
        ],
    )
    def test_a_version_that_does_not_fit_is_rejected_before_any_replica_hears_of_it(
        self, changes: dict[str, object], said: str
    ) -> None:
        world = World(
            target=LiveTarget(
                digest="t" * 64,
                hidden_size=64,
                vocab_size=1000,
                capture_layers=(2, 6, 9),
                algorithm="EAGLE3",
                draft_vocab_size=256,
            )
        )
        world.publish(1, **changes)
        outcome = world.look()
        assert world.history[-1].reason == "Incompatible"
        assert said in world.history[-1].message
        assert all(plan.candidate is None for plan in outcome.plans.values())
        assert world.state.ordinal == 0, "it was not tested, so it spent no alpha"

    def test_a_draft_vocabulary_larger_than_the_targets_means_all_of_it(self) -> None:
        world = World(target=LiveTarget(digest="t" * 64, draft_vocab_size=32000))
        world.publish(1, draft_vocab_size=1000)
        world.look()
        assert world.state.candidate is not None

    @pytest.mark.parametrize("reason", ["Corrupt", "NotFinite", "TensorShapes", "DigestMismatch"])
    def test_a_version_that_an_engine_refuses_is_rejected_with_its_reason(self, reason: str) -> None:
        world = World(refused={1: reason})
        world.publish(1)
        world.run(3)
        assert world.history[-1].verdict is Verdict.REJECTED
        assert world.history[-1].reason == reason
        assert "demo-engine-0 refused it" in world.history[-1].message

    def test_without_a_target_it_waits_and_says_so(self) -> None:
        world = World(target=None)
        world.publish(1)
        outcome = world.look()
        assert outcome.reason == "WaitingForReplicas"
        assert "no replica has said which target it serves" in outcome.message
        assert world.state.candidate is None

    def test_a_changed_target_takes_the_stable_drafter_out_until_it_is_measured_again(self) -> None:
        world = World()
        world.promote_first()
        world.target = LiveTarget(digest="n" * 64)
        outcome = world.look()
        assert outcome.safe_state is SafeState.TARGET_ONLY
        assert world.history[-1].reason == "TargetChanged"
        assert world.run(30, lambda w: not w.state.fallback.active) < 30
        assert world.history[-1].verdict is Verdict.RECOVERED
        count = len(world.history)
        world.run(5)
        assert len(world.history) == count, "measured once on the new target, it is not doubted again"

    def test_a_candidate_of_the_old_target_is_rejected_when_the_target_changes(self) -> None:
        world = World()
        world.publish(1)
        world.run(4)
        world.target = LiveTarget(digest="n" * 64)
        world.look()
        assert world.history[-1].reason == "Incompatible"

    def test_a_candidate_is_not_held_to_a_stable_drafter_that_replicas_cannot_run(self) -> None:
        """Otherwise nothing could ever be promoted after a change of target."""
        world = World()
        world.promote_first()
        world.target = LiveTarget(digest="n" * 64)
        world.look()
        world.publish(2, 1.3, digest="n" * 64)
        plan = world.look().plans["uid-0"]
        assert plan.switchback is not None
        assert plan.switchback.arms == (Arm.TARGET_ONLY, Arm.CANDIDATE)
        world.run(40, lambda w: w.state.stable == ref(2))
        assert world.state.stable == ref(2)


class TestSteps:
    def steps(self, *steps: CanaryStep, replicas: int = 4) -> World:
        world = World()
        world.change_policy(steps=[step.model_dump() for step in steps])
        world.scale(replicas)
        world.publish(1, 1.3)
        return world

    def test_it_starts_on_few_replicas_and_widens(self) -> None:
        world = self.steps(CanaryStep(replicas=1), CanaryStep(percent=50), CanaryStep(percent=100))
        sizes = []
        while world.state.stable is None and len(sizes) < 60:
            world.look()
            if world.state.candidate:
                sizes.append(len(world.state.candidate.pods))
            world.serve()
        assert list(dict.fromkeys(sizes)) == [1, 2, 4]
        assert world.state.stable == ref(1)

    def test_replicas_outside_the_canary_stay_as_they_are(self) -> None:
        world = self.steps(CanaryStep(replicas=1))
        plans = world.look().plans
        assert [plan.candidate for plan in plans.values()] == [ref(1), None, None, None]
        assert len({plan.generation for plan in plans.values()}) == 1

    def test_a_pause_holds_the_next_step_up_and_says_until_when(self) -> None:
        world = self.steps(CanaryStep(replicas=1, pause_seconds=1800), CanaryStep(percent=100))
        world.run(40, lambda w: bool(w.outcome and w.outcome.reason == "StepPause"))
        assert world.outcome is not None
        assert "pauses until" in world.outcome.message
        assert world.outcome.requeue_seconds is not None
        assert world.state.candidate is not None
        assert world.state.candidate.step == 0
        world.run(40, lambda w: w.state.candidate is not None and w.state.candidate.step == 1)
        assert world.state.candidate.step == 1

    def test_a_step_may_wait_for_a_person(self) -> None:
        world = self.steps(CanaryStep(replicas=1, wait_for_promote=True), CanaryStep(percent=100))
        world.run(30)
        assert world.outcome is not None
        assert world.outcome.reason == "WaitingForPromote"
        world.ask(ActionType.PROMOTE)
        assert world.state.candidate is not None
        assert world.state.candidate.step == 1
        world.run(30, ended)
        assert world.state.stable == ref(1)
        assert world.history[-1].decided_by == "gate"

    def test_the_last_step_may_wait_for_a_person_too(self) -> None:
        world = self.steps(CanaryStep(replicas=1, wait_for_promote=True))
        world.run(30)
        assert world.state.stable is None
        world.ask(ActionType.PROMOTE)
        assert world.state.stable == ref(1)

    def test_percent_rounds_up_and_is_never_nothing(self) -> None:
        assert [CanaryStep(percent=25).size(pods) for pods in (1, 4, 5, 9)] == [1, 1, 2, 3]
        assert CanaryStep(replicas=8).size(3) == 3

    def test_a_step_names_replicas_or_percent(self) -> None:
        for wrong in ({}, {"replicas": 1, "percent": 10}):
            with pytest.raises(ValueError, match="either replicas or percent"):
                CanaryStep.model_validate(wrong)


class TestWhichIsNext:
    def test_latest_passes_over_what_waits(self) -> None:
        world = World()
        for version in (1, 2, 3):
            world.publish(version)
        world.look()
        assert world.state.candidate is not None
        assert world.state.candidate.version == ref(3)
        assert (phase(world, 1), phase(world, 2)) == ("Superseded", "Superseded")

    def test_queue_takes_them_in_order(self) -> None:
        world = World()
        world.change_policy(supersede=Supersede.QUEUE)
        for version in (1, 2):
            world.publish(version, 0.8)
        tried = []
        for _ in range(60):
            world.look()
            if world.state.candidate:
                tried.append(world.state.candidate.version.version)
            world.serve()
        assert list(dict.fromkeys(tried)) == [1, 2]

    def test_one_that_still_waits_for_a_replica_gives_way_to_a_newer_one_and_spends_no_alpha(self) -> None:
        world = World(unfetchable={1: "no space left on device"})
        world.publish(1)
        world.run(2)
        world.publish(2)
        world.look()
        assert world.state.candidate is not None
        assert (world.state.candidate.version, world.state.ordinal) == (ref(2), 1)
        assert phase(world, 1) == "Superseded"

    def test_one_that_is_being_loaded_or_measured_is_not_superseded(self) -> None:
        """A trainer that publishes faster than a canary takes must not keep every version from being judged."""
        world = World()
        world.publish(1, 1.3)
        for version in range(2, 12):
            world.look()
            world.serve()
            world.publish(version)
            assert world.state.candidate is not None
            assert world.state.candidate.version == ref(1)

    def test_a_cool_down_separates_canaries(self) -> None:
        world = World()
        world.change_policy(cool_down_seconds=900.0)
        world.publish(1, 0.8)
        world.run(40, ended)
        world.publish(2)
        outcome = world.look()
        assert outcome.reason == "CoolDown"
        assert outcome.requeue_seconds is not None
        assert 0 < outcome.requeue_seconds <= 900
        world.run(20, lambda w: w.state.candidate is not None)
        assert world.state.candidate is not None

    def test_weights_that_were_rejected_are_not_tried_under_a_new_number(self) -> None:
        world = World()
        world.publish(1, 0.8)
        world.run(40, ended)
        world.publish(2, sha256=ref(1).sha256)
        world.look()
        assert world.state.candidate is None
        assert phase(world, 2) == "Rejected"

    def test_the_stable_versions_weights_are_not_tried_under_a_new_number(self) -> None:
        world = World()
        world.promote_first()
        world.publish(2, sha256=ref(1).sha256)
        world.look()
        assert world.state.candidate is None
        assert phase(world, 2) == "Superseded"


class TestModes:
    def test_target_only_by_hand_stops_everything_and_keeps_the_stable_version(self) -> None:
        world = World()
        world.promote_first()
        world.mode = Mode.TARGET_ONLY
        outcome = world.look()
        plan = outcome.plans["uid-0"]
        assert (plan.resting_arm, plan.switchback, outcome.safe_state) == (
            Arm.TARGET_ONLY,
            None,
            SafeState.TARGET_ONLY,
        )
        world.mode = Mode.AUTO
        assert world.look().plans["uid-0"].resting_arm is Arm.STABLE

    def test_a_run_stands_still_meanwhile_and_goes_on_after(self) -> None:
        world = World()
        world.publish(1, 1.3)
        world.run(5)
        world.mode = Mode.TARGET_ONLY
        world.run(5)
        assert world.state.candidate is not None
        world.mode = Mode.AUTO
        world.run(30, ended)
        assert world.state.stable == ref(1)

    def test_pinned_serves_the_named_version_without_a_gate(self) -> None:
        world = World()
        world.promote_first()
        world.publish(2)
        world.mode, world.pinned = Mode.PINNED, 2
        outcome = world.look()
        plan = outcome.plans["uid-0"]
        assert (plan.stable, plan.resting_arm, plan.switchback) == (ref(2), Arm.STABLE, None)
        assert world.state.stable == ref(1), "what was gated is remembered"

    @pytest.mark.parametrize(
        ("version", "said"), [(9, "the ledger has no such version"), (2, "it was trained for target")]
    )
    def test_a_pinned_version_that_cannot_serve_leaves_target_only(self, version: int, said: str) -> None:
        world = World()
        world.promote_first()
        world.publish(2, digest="u" * 64)
        world.mode, world.pinned = Mode.PINNED, version
        outcome = world.look()
        assert outcome.reason == "PinnedUnusable"
        assert said in outcome.message
        assert outcome.safe_state is SafeState.TARGET_ONLY


class TestPolicy:
    def test_an_edit_in_mid_canary_shows_as_drift_and_applies_to_the_next_run(self) -> None:
        world = World()
        world.publish(1)
        world.run(3)
        world.change_policy(gate={"alpha": 0.2})
        outcome = world.look()
        assert outcome.policy_drift
        assert world.state.policy is not None
        assert world.state.policy.gate.alpha == 0.05
        world.run(30, ended)
        assert world.history[-1].alpha == 0.05
        assert not world.look().policy_drift
        assert world.state.policy.gate.alpha == 0.2

    def test_retry_of_the_running_candidate_starts_it_again_with_the_new_policy(self) -> None:
        world = World()
        world.publish(1)
        world.run(3)
        world.change_policy(gate={"alpha": 0.2})
        world.ask(ActionType.RETRY, 1)
        assert world.state.candidate is not None
        assert world.state.candidate.version == ref(1)
        assert world.state.policy is not None
        assert world.state.policy.gate.alpha == 0.2

    def test_decreasing_alpha_counts_the_candidates_tested(self) -> None:
        world = World()
        world.change_policy(gate={"spending": "Decreasing"})
        for version in (1, 2):
            world.publish(version, 0.8)
            world.run(60, lambda w, v=version: w.state.considered == v and w.state.candidate is None)  # type: ignore[misc]
        assert [round(record.alpha or 0, 5) for record in world.history] == [0.0304, 0.0076]

    def test_a_washout_as_long_as_the_block_is_refused(self) -> None:
        with pytest.raises(ValueError, match="must be below block_seconds"):
            RolloutPolicy(block_seconds=5, washout_seconds=5)

    def test_publishing_is_frozen_after_several_broken_guardrails_in_a_row(self) -> None:
        world = World(failing={1, 2, 3})
        for version in (1, 2, 3):
            assert not world.look().freeze_publishing
            world.publish(version)
            world.run(60, lambda w, v=version: w.state.considered == v and w.state.candidate is None)  # type: ignore[misc]
            assert world.history[-1].reason == "ErrorRate"
        assert world.look().freeze_publishing
        world.ask(ActionType.RETRY, 3)
        assert world.outcome is not None
        assert not world.outcome.freeze_publishing


class TestPhasesOfVersions:
    def test_versions_that_wait_are_published(self) -> None:
        state = RunState(considered=1)
        phases = version_phases(state, [manifest(2)], [])
        assert (phases[2].phase, phases[2].reason) == (VersionPhase.PUBLISHED.value, "Waiting")

    def test_a_rejected_version_that_somebody_retries_waits_for_its_turn(self) -> None:
        world = World()
        world.publish(1, 0.8)
        world.run(40, ended)
        world.publish(2)
        world.run(2)
        world.ask(ActionType.RETRY, 1)
        assert phase(world, 1) == "Published"

    def test_a_stable_version_without_a_record_still_shows_as_promoted(self) -> None:
        phases = version_phases(RunState(stable=ref(1), considered=1), [manifest(1)], [])
        assert phases[1].phase == "Promoted"


def test_state_goes_through_the_status_unchanged() -> None:
    world = World()
    world.publish(1, 0.8)
    world.run(8)
    assert RunState.from_status(world.state.to_status()) == world.state
    assert RunState.from_status(None) == RunState()
    assert world.now > START
