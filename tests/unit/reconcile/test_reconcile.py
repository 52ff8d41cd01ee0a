"""A snapshot and what follows from it: conditions, phase, plans, directive, versions, events."""

from dataclasses import replace
from datetime import timedelta

import pytest

from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.reconcile.observed import LedgerView, Observed, PolicyView, Problem
from speculator_operator.reconcile.outcome import Outcome
from speculator_operator.reconcile.reconcile import invalid_status, reconcile, run_state
from speculator_runtime.contracts.control import BucketCounters
from speculator_runtime.contracts.ledger import Interval, Verdict, VerdictRecord
from speculator_runtime.contracts.plan import Arm, Block, LoadStatus, VersionRef, VersionState
from speculator_runtime.contracts.trainer import TrainerDirective, TrainerStatus
from support.observed import (
    LABELS,
    NOW,
    QUICK,
    later,
    loaded,
    make_agent,
    make_entry,
    make_observed,
    make_pod,
    make_speculator,
)


def decide(observed: Observed) -> Outcome:
    return reconcile(observed, LABELS)


def condition(outcome: Outcome, kind: str) -> dict:
    return next(c for c in outcome.status["conditions"] if c["type"] == kind)


def found(outcome: Outcome, kind: str) -> tuple[str, str]:
    entry = condition(outcome, kind)
    return entry["status"], entry["reason"]


def ref(version: int) -> VersionRef:
    return VersionRef(version=version, sha256=f"{version:064x}")


def verdict(version: int, sequence: int, kind: Verdict = Verdict.PROMOTED, **changes) -> VerdictRecord:
    record = VerdictRecord(
        sequence=sequence,
        version=ref(version),
        verdict=kind,
        reason="Faster",
        message="it is faster",
        decided_by="gate",
        at=NOW,
        blocks=20,
        evidence_sha256="e" * 64,
        against_target_only=Interval(estimate=1.4, lower=1.2, upper=1.6, pairs=30),
    )
    return record.model_copy(update=changes)


def promoted(versions: int = 1, **changes) -> Observed:
    """Version 1 was promoted, says the ledger; the agent follows."""
    ledger = LedgerView(read=True, versions=tuple(make_entry(v + 1) for v in range(versions)), history=(verdict(1, 1),))
    agent = make_agent(generation=0, versions=[loaded(ref(1))])
    return make_observed(ledger=ledger, agents={"uid-chat-engine-0": agent}, **changes)


def block(index: int, arm: Arm, tokens_per_second: float, generation: int) -> Block:
    seconds = 400 / tokens_per_second * (1 + 0.01 * (index % 3))
    counters = BucketCounters(steps=200, sequences=200, tokens=400, seconds=seconds, accept_histogram={2: 200})
    return Block(
        pod="chat-engine-0",
        pod_uid="uid-chat-engine-0",
        generation=generation,
        index=index,
        round=index // 2,
        arm=arm,
        version=ref(1) if arm == Arm.CANDIDATE else None,
        started=1000.0 + index,
        seconds=seconds,
        buckets={1: counters},
        requests_finished=4,
    )


def canary_blocks(generation: int, speed: float, rounds: int = 40) -> tuple[Block, ...]:
    return tuple(
        block(index, Arm.CANDIDATE if index % 2 else Arm.TARGET_ONLY, speed if index % 2 else 100.0, generation)
        for index in range(2 * rounds)
    )


class TestHealthy:
    def test_a_new_speculator_learns(self) -> None:
        outcome = decide(make_observed())
        assert outcome.status["phase"] == "Learning"
        assert found(outcome, "Ready") == ("True", "Serving")
        assert found(outcome, "Degraded") == ("False", "AsExpected")
        assert found(outcome, "SpeculationActive") == ("False", "NoStableVersion")
        assert found(outcome, "TrainerHealthy") == ("True", "TrainerTraining")
        assert found(outcome, "DrafterCompatible") == ("Unknown", "NoVersionYet")
        assert found(outcome, "CanaryPassing") == ("Unknown", "NoCanary")
        assert found(outcome, "Paused") == ("False", "NotPaused")

    def test_every_condition_has_the_generation_it_is_about(self) -> None:
        outcome = decide(make_observed(make_speculator(generation=7)))
        assert {c["observedGeneration"] for c in outcome.status["conditions"]} == {7}
        assert outcome.status["observedGeneration"] == 7
        assert len(outcome.status["conditions"]) == 8

    def test_the_next_pass_over_the_same_world_changes_nothing(self) -> None:
        observed = make_observed()
        first = decide(observed)
        agents = {"uid-chat-engine-0": make_agent(generation=first.status["planGeneration"])}
        second = decide(later(observed, first.status, last_directive=first.directive, agents=agents))
        assert second.status == first.status
        assert second.plans == {}
        assert second.events == ()
        assert not second.busy

    def test_counters_of_a_live_trainer_do_not_make_a_write(self) -> None:
        observed = make_observed()
        first = decide(observed)
        trainer = TrainerStatus(phase="Training", step=999, requests_received=777, directive_generation=1)
        agents = {"uid-chat-engine-0": make_agent(generation=first.status["planGeneration"])}
        common = {"last_directive": first.directive, "agents": agents, "trainer": trainer}
        quiet = decide(later(observed, first.status, refresh_figures=False, **common))
        assert quiet.status == first.status
        fresh = decide(later(observed, first.status, refresh_figures=True, **common))
        assert fresh.status["trainer"]["step"] == 999

    def test_a_new_phase_of_the_trainer_is_news(self) -> None:
        observed = make_observed()
        first = decide(observed)
        trainer = TrainerStatus(phase="WaitingForTraces", step=999)
        second = decide(later(observed, first.status, refresh_figures=False, trainer=trainer))
        assert second.status["trainer"]["phase"] == "WaitingForTraces"

    def test_facts_for_metrics(self) -> None:
        facts = decide(promoted()).facts
        assert (facts.stable, facts.candidate, facts.mode, facts.phase) == (1, 0, "Speculative", "Stable")
        assert (facts.speedup, facts.speedup_lower, facts.pairs, facts.ready_replicas) == (1.4, 1.2, 30, 1)


class TestReady:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"credentials": Problem("CredentialsSecretMissing", "create it")}, "CredentialsSecretMissing"),
            ({"object_problems": (Problem("NameTaken", "rename it"),)}, "NameTaken"),
            ({"ledger": LedgerView(problem=Problem("BucketNotFound", "create it"))}, "BucketNotFound"),
            ({"sync_policy": PolicyView(None, "p", 0, Problem("SyncPolicyMissing", "create it"))}, "SyncPolicyMissing"),
            (
                {"training_policy": PolicyView(None, "p", 0, Problem("TrainingPolicyMissing", "create it"))},
                "TrainingPolicyMissing",
            ),
        ],
    )
    def test_what_a_person_must_correct_is_not_ready_although_pods_serve(self, changes, reason) -> None:
        outcome = decide(make_observed(**changes))
        assert found(outcome, "Ready") == ("False", reason)
        assert found(outcome, "Degraded") == ("True", reason)
        assert outcome.status["phase"] == "Degraded"
        assert outcome.status["message"] == condition(outcome, "Degraded")["message"]

    def test_a_store_that_is_away_for_a_while_degrades_and_serving_stays_ready(self) -> None:
        outcome = decide(make_observed(ledger=LedgerView(read=True, problem=Problem("StoreUnreachable", "no answer"))))
        assert found(outcome, "Ready") == ("True", "Serving")
        assert found(outcome, "Degraded") == ("True", "StoreUnreachable")

    def test_no_replicas_asked_for(self) -> None:
        observed = make_observed(make_speculator(serving={"replicas": 0}), pods=(), agents={})
        assert found(decide(observed), "Ready") == ("False", "ScaledToZero")
        assert found(decide(observed), "Progressing")[0] == "False"

    def test_no_pods_yet(self) -> None:
        outcome = decide(make_observed(pods=(), agents={}, trainer=None))
        assert outcome.status["phase"] == "Pending"
        assert found(outcome, "Ready") == ("False", "EnginesStarting")
        assert found(outcome, "Progressing") == ("True", "EnginesStarting")
        assert outcome.busy

    def test_a_pod_that_starts(self) -> None:
        outcome = decide(make_observed(pods=(make_pod(ready=False),), agents={}))
        assert outcome.status["phase"] == "Starting"
        assert outcome.status["message"] == condition(outcome, "Ready")["message"]

    def test_one_of_two_replicas_is_not_ready(self) -> None:
        observed = make_observed(make_speculator(serving={"replicas": 2}))
        assert found(decide(observed), "Ready") == ("False", "EnginesStarting")

    def test_a_crashing_pod_is_not_ready_and_says_why(self) -> None:
        status = {"name": "engine", "state": {"terminated": {"exitCode": 1, "message": "no such device"}}}
        observed = make_observed(pods=(make_pod(ready=False, containerStatuses=[status]),), agents={})
        outcome = decide(observed)
        assert found(outcome, "Ready") == ("False", "CrashLooping")
        assert found(outcome, "Degraded") == ("True", "CrashLooping")
        assert "no such device" in outcome.status["message"]

    def test_a_terminating_pod_neither_serves_nor_counts(self) -> None:
        going = make_pod()
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        outcome = decide(make_observed(pods=(going,), agents={}))
        assert outcome.status["replicas"] == 0
        assert found(outcome, "Ready")[0] == "False"


class TestDegraded:
    def test_an_agent_that_does_not_answer_is_named(self) -> None:
        outcome = decide(make_observed(agents={}, agent_failures={"uid-chat-engine-0": "connection refused"}))
        assert found(outcome, "Degraded") == ("True", "AgentUnreachable")
        assert "chat-engine-0" in condition(outcome, "Degraded")["message"]
        assert found(outcome, "Ready")[0] == "True", "serving does not need the agent"

    def test_an_agent_of_a_pod_that_is_not_ready_is_not_missed(self) -> None:
        observed = make_observed(
            pods=(make_pod(ready=False),), agents={}, agent_failures={"uid-chat-engine-0": "refused"}
        )
        assert found(decide(observed), "Degraded") == ("False", "AsExpected")

    def test_an_engine_that_its_agent_calls_unhealthy(self) -> None:
        agent = make_agent(engine_healthy=False, last_error="control API: 500")
        outcome = decide(make_observed(agents={"uid-chat-engine-0": agent}))
        assert found(outcome, "Degraded") == ("True", "EngineUnhealthy")

    def test_an_unhealthy_engine_of_a_pod_that_is_not_ready_is_no_news(self) -> None:
        agent = make_agent(engine_healthy=False, last_error="starting")
        observed = make_observed(pods=(make_pod(ready=False),), agents={"uid-chat-engine-0": agent})
        assert found(decide(observed), "Degraded") == ("False", "AsExpected")

    def test_replicas_with_different_targets(self) -> None:
        pods = (make_pod(), make_pod("chat-engine-1"))
        agents = {
            "uid-chat-engine-0": make_agent(),
            "uid-chat-engine-1": make_agent("chat-engine-1", target_digest="u" * 64),
        }
        observed = make_observed(make_speculator(serving={"replicas": 2}), pods=pods, agents=agents)
        assert found(decide(observed), "Degraded") == ("True", "TargetsDiffer")

    def test_a_trainer_that_gave_up(self) -> None:
        outcome = decide(make_observed(trainer=TrainerStatus(phase="Failed", message="loss is NaN for 50 steps")))
        assert found(outcome, "Degraded") == ("True", "TrainerFailed")
        assert found(outcome, "TrainerHealthy") == ("False", "TrainerFailed")
        assert "NaN" in condition(outcome, "TrainerHealthy")["message"]
        assert found(outcome, "Ready")[0] == "True"


class TestTrainer:
    def test_a_trainer_pod_that_starts(self) -> None:
        observed = make_observed(pods=(make_pod(), make_pod("t", "trainer", ready=False)), trainer=None)
        assert found(decide(observed), "TrainerHealthy") == ("False", "TrainerStarting")

    def test_a_trainer_pod_that_cannot_be_scheduled(self) -> None:
        conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no memory"}]
        pods = (make_pod(), make_pod("t", "trainer", ready=False, conditions=conditions))
        outcome = decide(make_observed(pods=pods, trainer=None))
        assert found(outcome, "TrainerHealthy") == ("False", "Unschedulable")
        assert found(outcome, "Ready")[0] == "True"
        assert found(outcome, "Degraded") == ("True", "Unschedulable")

    def test_a_ready_trainer_that_does_not_answer(self) -> None:
        outcome = decide(make_observed(trainer=None, trainer_failure="http://10.0.0.2:8090/v1/status: TimeoutError"))
        assert found(outcome, "TrainerHealthy") == ("False", "TrainerUnreachable")
        assert "10.0.0.2" in condition(outcome, "TrainerHealthy")["message"]

    def test_what_it_last_said_stays_in_the_status(self) -> None:
        observed = make_observed(
            trainer=TrainerStatus(phase="Training", step=10, latest=ref(1), train_accept_length=1.75)
        )
        first = decide(observed)
        second = decide(later(observed, first.status, trainer=None))
        assert second.status["trainer"]["latestVersion"] == 1
        assert second.status["trainer"]["trainAcceptLength"] == "1.7500"


class TestDirective:
    def test_the_trainer_is_told_once(self) -> None:
        observed = make_observed()
        first = decide(observed)
        assert first.directive == TrainerDirective(generation=1, target_digest="t" * 64)
        assert first.status["directiveGeneration"] == 1
        heard = TrainerStatus(phase="Training", directive_generation=1)
        second = decide(later(observed, first.status, last_directive=first.directive, trainer=heard))
        assert second.directive is None

    def test_pausing_is_a_new_generation(self) -> None:
        last = TrainerDirective(generation=4, target_digest="t" * 64)
        directive = decide(make_observed(make_speculator(paused=True), last_directive=last)).directive
        assert directive is not None
        assert (directive.generation, directive.paused) == (5, True)

    def test_a_trainer_that_restarted_is_told_again(self) -> None:
        last = TrainerDirective(generation=4, target_digest="t" * 64)
        status = TrainerStatus(phase="Training", directive_generation=0)
        assert decide(make_observed(last_directive=last, trainer=status)).directive == last

    def test_a_new_operator_goes_on_after_the_generation_that_the_trainer_has(self) -> None:
        status = TrainerStatus(phase="Training", directive_generation=9)
        directive = decide(make_observed(trainer=status)).directive
        assert directive is not None
        assert directive.generation == 10

    def test_a_target_digest_that_is_not_known_at_the_moment_is_not_taken_back(self) -> None:
        last = TrainerDirective(generation=4, target_digest="t" * 64)
        assert decide(make_observed(agents={}, last_directive=last)).directive == last

    def test_nobody_to_tell(self) -> None:
        assert decide(make_observed(trainer=None)).directive is None


class TestCanary:
    def start(self, **changes) -> tuple[Observed, Outcome]:
        observed = make_observed(ledger=LedgerView(read=True, versions=(make_entry(1),)), **changes)
        return observed, decide(observed)

    def run(self, speed: float) -> tuple[Observed, Outcome]:
        observed, first = self.start()
        generation = first.status["planGeneration"]
        agent = make_agent(generation=generation, versions=[loaded(ref(1))])
        ledger = replace(observed.ledger, evidence=canary_blocks(generation, speed))
        begun = later(observed, first.status, agents={"uid-chat-engine-0": agent}, ledger=ledger)
        return begun, decide(begun)

    def test_a_version_gets_a_plan_and_a_run(self) -> None:
        _, outcome = self.start()
        (plan,) = outcome.plans.values()
        assert plan.candidate == ref(1)
        assert plan.generation == outcome.status["planGeneration"]
        assert outcome.status["phase"] == "Canary"
        assert outcome.status["candidate"]["version"] == 1
        assert outcome.status["step"] == "1/1"
        run = outcome.status["run"]
        assert run["syncPolicy"]["name"] == "quick"
        assert run["syncPolicy"]["generation"] == 3
        assert len(run["syncPolicy"]["sha256"]) == 64
        assert outcome.busy
        assert outcome.requeue_seconds is not None
        assert found(outcome, "Progressing")[0] == "True"
        assert found(outcome, "CanaryPassing")[0] == "Unknown"
        assert [note.reason for note in outcome.events].count("Serving") == 1

    def test_the_run_keeps_the_policies_it_began_with(self) -> None:
        observed, first = self.start()
        edited = PolicyView(SyncPolicySpec.model_validate(QUICK | {"publish": {"everyRequests": 7}}), "quick", 4)
        second = decide(later(observed, first.status, sync_policy=edited))
        assert second.status["run"]["syncPolicy"] == first.status["run"]["syncPolicy"]

    def test_an_agent_that_has_the_plan_is_not_given_it_again(self) -> None:
        observed, first = self.start()
        agents = {"uid-chat-engine-0": make_agent(generation=first.status["planGeneration"])}
        assert decide(later(observed, first.status, agents=agents)).plans == {}

    def test_an_agent_that_does_not_answer_gets_its_plan_when_it_does(self) -> None:
        observed, first = self.start()
        silent = decide(later(observed, first.status, agents={}, agent_failures={"uid-chat-engine-0": "refused"}))
        assert silent.plans == {}

    def test_a_faster_candidate_is_promoted_in_one_pass(self) -> None:
        _, outcome = self.run(speed=150.0)
        (record,) = outcome.verdicts
        assert record.verdict == Verdict.PROMOTED
        assert outcome.status["stable"] == {"version": 1, "sha256": ref(1).sha256}
        assert "candidate" not in outcome.status
        assert float(outcome.status["speedup"]["lower"]) > 1.02
        (version,) = outcome.versions
        assert version["status"]["phase"] == "Promoted"
        assert version["status"]["verdict"] == "Promoted"
        assert outcome.status["mode"] == "Speculative"
        assert found(outcome, "SpeculationActive") == ("True", "StableDrafter")
        assert found(outcome, "DrafterCompatible") == ("True", "Loaded")

    def test_a_slower_candidate_is_rejected(self) -> None:
        _, outcome = self.run(speed=80.0)
        (record,) = outcome.verdicts
        assert record.verdict == Verdict.REJECTED
        assert outcome.status["rejectedDigests"][0]["version"] == 1
        assert "stable" not in outcome.status
        assert outcome.versions[0]["status"]["phase"] == "Rejected"

    def test_a_candidate_in_mid_canary_says_how_it_stands(self) -> None:
        observed, first = self.start()
        generation = first.status["planGeneration"]
        agent = make_agent(generation=generation, versions=[loaded(ref(1))])
        ledger = replace(observed.ledger, evidence=canary_blocks(generation, 150.0, rounds=1))
        outcome = decide(later(observed, first.status, agents={"uid-chat-engine-0": agent}, ledger=ledger))
        status, reason = found(outcome, "CanaryPassing")
        assert (status, reason) == ("Unknown", "CollectingPairs")
        assert outcome.versions[0]["status"]["phase"] == "Canary"

    def test_a_step_that_passed_and_pauses_is_passing(self) -> None:
        canary = QUICK["canary"] | {"steps": [{"replicas": 1, "pause": {"duration": "1h"}}, {"percent": 100}]}
        policy = PolicyView(SyncPolicySpec.model_validate(QUICK | {"canary": canary}), "quick", 3)
        observed, first = self.start(sync_policy=policy)
        generation = first.status["planGeneration"]
        agent = make_agent(generation=generation, versions=[loaded(ref(1))])
        ledger = replace(observed.ledger, evidence=canary_blocks(generation, 150.0))
        outcome = decide(later(observed, first.status, agents={"uid-chat-engine-0": agent}, ledger=ledger))
        assert found(outcome, "CanaryPassing") == ("True", "Faster")
        assert outcome.status["step"] == "1/2"
        assert outcome.status["run"]["pausedSince"]
        assert float(outcome.status["speedup"]["estimate"]) > 1.3

    def test_a_paused_canary_with_bad_evidence_is_failing_and_not_decided(self) -> None:
        observed, first = self.start()
        generation = first.status["planGeneration"]
        agent = make_agent(generation=generation, versions=[loaded(ref(1))])
        begun = later(observed, first.status, agents={"uid-chat-engine-0": agent})
        second = decide(begun)
        ledger = replace(observed.ledger, evidence=canary_blocks(generation, 80.0))
        paused = make_speculator(status=second.status, generation=2, paused=True)
        outcome = decide(replace(begun, speculator=paused, status=second.status, ledger=ledger))
        assert outcome.verdicts == ()
        assert found(outcome, "CanaryPassing")[0] == "False"

    def test_a_version_that_the_engine_refuses_is_not_compatible(self) -> None:
        observed, first = self.start()
        refused = VersionState(
            ref=ref(1), status=LoadStatus.REFUSED, reason="TensorShapes", message="fc.weight is [8, 24]"
        )
        agent = make_agent(generation=first.status["planGeneration"], versions=[refused])
        outcome = decide(later(observed, first.status, agents={"uid-chat-engine-0": agent}))
        assert found(outcome, "DrafterCompatible")[0] == "False"
        assert "fc.weight" in condition(outcome, "DrafterCompatible")["message"]
        again = decide(later(observed, outcome.status, ledger=replace(observed.ledger, history=outcome.verdicts)))
        assert found(again, "DrafterCompatible")[0] == "False"

    def test_a_stable_version_that_a_replica_refuses_is_named(self) -> None:
        observed = promoted()
        refused = VersionState(ref=ref(1), status=LoadStatus.REFUSED, message="truncated")
        agent = make_agent(versions=[refused])
        outcome = decide(replace(observed, agents={"uid-chat-engine-0": agent}))
        assert found(outcome, "DrafterCompatible") == ("False", "Refused")

    def test_without_policy_nothing_is_tried_and_the_gate_is_not_dropped(self) -> None:
        missing = PolicyView(None, "quick", 0, Problem("SyncPolicyMissing", "SyncPolicy ns/quick does not exist"))
        _, outcome = self.start(sync_policy=missing)
        assert "candidate" not in outcome.status
        assert outcome.verdicts == ()
        assert all(plan.candidate is None for plan in outcome.plans.values())
        assert "ns/quick" in outcome.status["message"]

    def test_a_ledger_that_was_not_read_decides_nothing(self) -> None:
        outcome = decide(make_observed(ledger=LedgerView(read=False, versions=(make_entry(1),))))
        assert "candidate" not in outcome.status
        assert found(outcome, "Progressing")[1] == "LedgerUnavailable"

    def test_an_action_is_echoed(self) -> None:
        observed, first = self.start()
        action = {"rollout": {"action": {"id": "a-1", "type": "Abort"}}}
        speculator = make_speculator(status=first.status, generation=2, **action)
        outcome = decide(replace(observed, speculator=speculator, status=first.status))
        assert outcome.status["lastAction"]["id"] == "a-1"
        assert outcome.status["lastAction"]["result"] == "Done"
        refused = make_speculator(generation=2, rollout={"action": {"id": "a-2", "type": "Abort"}})
        outcome = decide(make_observed(refused))
        assert outcome.status["lastAction"]["result"] == "Refused"


class TestModes:
    def test_paused(self) -> None:
        outcome = decide(make_observed(make_speculator(paused=True)))
        assert found(outcome, "Paused") == ("True", "PausedByUser")
        assert outcome.status["phase"] == "Paused"
        assert "spec.paused" in outcome.status["message"]

    def test_target_only(self) -> None:
        observed = replace(promoted(), speculator=make_speculator(mode="TargetOnly"))
        outcome = decide(observed)
        assert outcome.status["phase"] == "TargetOnly"
        assert outcome.status["mode"] == "TargetOnly"
        assert found(outcome, "SpeculationActive") == ("False", "SwitchedOff")

    def test_pinned(self) -> None:
        observed = replace(promoted(2), speculator=make_speculator(mode="Pinned", pinnedVersion=2))
        outcome = decide(observed)
        assert outcome.status["phase"] == "Pinned"
        (plan,) = outcome.plans.values()
        assert plan.stable == ref(2)
        assert found(outcome, "SpeculationActive")[0] == "True"

    def test_pinned_before_anything_was_promoted(self) -> None:
        ledger = LedgerView(read=True, versions=(make_entry(1),))
        outcome = decide(make_observed(make_speculator(mode="Pinned", pinnedVersion=1), ledger=ledger))
        assert found(outcome, "SpeculationActive")[0] == "True"

    def test_pinned_to_a_version_that_does_not_exist_decodes_target_only_and_says_why(self) -> None:
        observed = replace(promoted(), speculator=make_speculator(mode="Pinned", pinnedVersion=9))
        outcome = decide(observed)
        assert found(outcome, "SpeculationActive") == ("False", "PinnedUnusable")
        assert "version 9" in condition(outcome, "SpeculationActive")["message"]

    def test_fallen_back(self) -> None:
        fallen = verdict(1, 2, Verdict.FALLBACK, reason="SlowerThanTargetOnly", message="0.8 times as fast")
        observed = promoted()
        observed = replace(observed, ledger=replace(observed.ledger, history=(verdict(1, 1), fallen)))
        outcome = decide(observed)
        assert outcome.status["phase"] == "Fallback"
        assert outcome.status["fallback"]["active"]
        assert found(outcome, "SpeculationActive")[0] == "False"
        assert outcome.status["mode"] == "TargetOnly"


class TestMemory:
    def test_a_status_that_was_lost_is_restored_from_the_ledger(self) -> None:
        outcome = decide(promoted())
        assert outcome.status["stable"]["version"] == 1
        assert outcome.verdicts == ()
        assert outcome.status["speedup"] == {"estimate": "1.4000", "lower": "1.2000", "upper": "1.6000", "pairs": 30}

    def test_a_status_that_cannot_be_read_counts_as_lost(self) -> None:
        assert run_state({"rollout": {"generation": "many"}}).generation == 0
        assert run_state({}).generation == 0

    def test_a_new_leader_without_the_ledger_keeps_the_speedup_that_was_shown(self) -> None:
        observed = promoted()
        first = decide(observed)
        away = LedgerView(read=False, problem=Problem("StoreUnreachable", "no answer"))
        second = decide(later(observed, first.status, ledger=away))
        assert second.status["speedup"] == first.status["speedup"]
        assert second.status["latestVersion"] == 1
        assert second.status["stable"] == first.status["stable"]

    def test_the_target_digest_is_kept_while_no_replica_answers(self) -> None:
        observed = make_observed()
        first = decide(observed)
        assert decide(later(observed, first.status, agents={})).status["targetDigest"] == "t" * 64


class TestVersions:
    def test_the_history_is_bounded_and_what_is_in_use_stays(self) -> None:
        speculator = make_speculator(revisionHistoryLimit=2, paused=True)
        ledger = LedgerView(read=True, versions=tuple(make_entry(v) for v in range(1, 7)), history=(verdict(1, 1),))
        outcome = decide(make_observed(speculator, ledger=ledger))
        assert [obj["spec"]["version"] for obj in outcome.versions] == [1, 5, 6]

    def test_a_version_object_belongs_to_its_speculator(self) -> None:
        (version,) = decide(promoted()).versions
        assert version["metadata"]["name"] == "chat-000001"
        assert version["metadata"]["ownerReferences"][0]["uid"] == "uid-chat"
        assert version["metadata"]["labels"] == LABELS
        assert version["spec"]["location"] == "s3://bucket/ns/chat/versions/000001"

    def test_a_manifest_with_impossible_values_hides_no_other_and_is_told(self) -> None:
        odd = make_entry(1, training_policy_sha256="not a digest")
        ledger = LedgerView(read=True, versions=(odd, make_entry(2)))
        outcome = decide(make_observed(ledger=ledger))
        assert [obj["spec"]["version"] for obj in outcome.versions] == [2]
        (note,) = [note for note in outcome.events if note.reason == "VersionNotShown"]
        assert "version 1" in note.message

    def test_a_manifest_that_cannot_be_read_is_named(self) -> None:
        ledger = LedgerView(read=True, unreadable={3: "manifest.json: version: Field required"})
        outcome = decide(make_observed(ledger=ledger))
        assert found(outcome, "DrafterCompatible") == ("False", "ManifestUnreadable")
        assert "version 3" in condition(outcome, "DrafterCompatible")["message"]


class TestEvents:
    def test_a_transition_is_told_once(self) -> None:
        observed = make_observed()
        first = decide(observed)
        problem = Problem("StoreUnreachable", "no answer")
        broken = later(observed, first.status, ledger=LedgerView(read=True, problem=problem))
        second = decide(broken)
        (note,) = [note for note in second.events if note.reason == "StoreUnreachable"]
        assert note.type == "Warning"
        assert "no answer" in note.message
        third = decide(later(broken, second.status))
        assert third.events == ()

    def test_going_back_to_normal_is_told_too(self) -> None:
        broken = make_observed(ledger=LedgerView(read=True, problem=Problem("StoreUnreachable", "no answer")))
        first = decide(broken)
        mended = decide(later(broken, first.status, ledger=LedgerView(read=True)))
        assert ("Normal", "AsExpected") in [(note.type, note.reason) for note in mended.events]

    def test_how_things_begin_is_no_news(self) -> None:
        reasons = [note.reason for note in decide(make_observed(pods=(), agents={}, trainer=None)).events]
        assert "TrainerStarting" not in reasons
        assert "EnginesStarting" not in reasons

    def test_the_same_transition_at_another_time_is_another_event(self) -> None:
        problem = LedgerView(read=True, problem=Problem("StoreUnreachable", "no answer"))
        observed = make_observed(ledger=problem)
        one = decide(observed).events
        two = decide(replace(observed, now=NOW + timedelta(hours=1))).events
        assert {note.key for note in one}.isdisjoint(note.key for note in two)

    def test_settings_that_nothing_acts_on_are_told_with_their_paths(self) -> None:
        policy = QUICK | {
            "holdback": {"block": "7s"},
            "canary": QUICK["canary"] | {"guardrails": {"minAcceptLength": "1.5"}},
        }
        observed = make_observed(
            make_speculator(generation=4, adaptive={"enabled": True}),
            sync_policy=PolicyView(SyncPolicySpec.model_validate(policy), "quick", 3),
            training_policy=PolicyView(None, "gone", 0, Problem("TrainingPolicyMissing", "create it")),
        )
        notes = {note.key: note.message for note in decide(observed).events if note.reason == "SettingsIgnored"}
        assert "spec.adaptive.enabled" in notes["Speculator chat generation 4"]
        assert "minAcceptLength" in notes["SyncPolicy quick generation 3"]
        assert "spec.holdback.block" in notes["SyncPolicy quick generation 3"]
        assert decide(make_observed(sync_policy=PolicyView(None, "x", 0, Problem("Missing", "m")))).events != ()


class TestInvalidSpec:
    def test_it_is_told_and_what_was_known_stays(self) -> None:
        first = decide(promoted()).status
        status = invalid_status("chat", 5, first, ["spec.serving.replicas: below 0"], NOW)
        assert status["stable"]["version"] == 1
        assert status["phase"] == "Degraded"
        assert status["observedGeneration"] == 5
        conditions = {c["type"]: c for c in status["conditions"]}
        assert conditions["Ready"]["reason"] == "InvalidSpec"
        assert "spec.serving.replicas" in conditions["Ready"]["message"]
        assert conditions["TrainerHealthy"]["status"] == "True"
        assert status["rollout"] == first["rollout"], "the rollout's memory is not lost to a typo"

    def test_told_again_it_is_the_same(self) -> None:
        first = invalid_status("chat", 5, {}, ["spec: wrong"], NOW)
        assert invalid_status("chat", 5, first, ["spec: wrong"], NOW + timedelta(minutes=1)) == first

    def test_a_status_that_is_not_valid_either_is_replaced(self) -> None:
        status = invalid_status("chat", 5, {"conditions": "none"}, ["spec: wrong"], NOW)
        assert status["phase"] == "Degraded"
