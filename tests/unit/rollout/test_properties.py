"""Whatever happens, in whatever order: a safe state, no promotion without evidence, and a reason for waiting."""

from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from speculator_operator.gate.policy import FallbackPolicy, GatePolicy
from speculator_operator.rollout import (
    ActionType,
    CanaryStep,
    LiveTarget,
    Mode,
    OnInconclusive,
    RolloutOutcome,
    RolloutPolicy,
    RunState,
    SafeState,
    Supersede,
    advance,
    verify_record,
    version_phases,
)
from speculator_runtime.contracts.ledger import Verdict, VerdictRecord
from speculator_runtime.contracts.plan import Arm
from support.rollout_world import World, ref

POLICIES = st.builds(
    RolloutPolicy,
    gate=st.builds(GatePolicy, burn_in_pairs=st.just(4), max_pairs=st.just(14), tightest_at_pairs=st.just(8)),
    steps=st.lists(
        st.sampled_from(
            [
                CanaryStep(replicas=1, min_pairs=4),
                CanaryStep(percent=50, min_pairs=2, pause_seconds=100),
                CanaryStep(percent=100, min_pairs=2, wait_for_promote=True),
            ]
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    on_inconclusive=st.sampled_from(OnInconclusive),
    supersede=st.sampled_from(Supersede),
    cool_down_seconds=st.sampled_from([0.0, 120.0]),
    max_seconds=st.just(3600.0),
    load_seconds=st.just(300.0),
    fallback=st.builds(
        FallbackPolicy,
        min_pairs=st.just(4),
        window_pairs=st.just(8),
        fast_pairs=st.just(3),
        min_stay_seconds=st.sampled_from([0.0, 60.0]),
    ),
)
SPEEDS = st.sampled_from([0.6, 0.95, 1.0, 1.1, 1.5])
TARGETS = ("t" * 64, "n" * 64)


class Rollouts(RuleBasedStateMachine):
    """Events in any order; each is followed by a pass that is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.generation = 0

    @initialize(policy=POLICIES, seed=st.integers(0, 1000), stable=st.booleans())
    def begin(self, policy: RolloutPolicy, seed: int, stable: bool) -> None:
        self.world = World(policy=policy, seed=seed)
        if stable:
            self.new_version(1.2)
            self.check(self.world.ask(ActionType.PROMOTE))
            assert self.world.state.stable == ref(1)

    def new_version(self, speed: float, **changes: object) -> None:
        target = {"digest": self.world.target.digest} if self.world.target else {}
        self.world.publish(max(self.world.versions, default=0) + 1, speed, **(target | changes))
        self.pass_over()

    @rule(speed=SPEEDS, kind=st.sampled_from(["fits", "fits", "of another target", "same weights"]))
    def publish(self, speed: float, kind: str) -> None:
        changes: dict[str, object] = {"digest": "x" * 64} if kind == "of another target" else {}
        if kind == "same weights" and self.world.versions:
            changes["sha256"] = ref(max(self.world.versions)).sha256
        self.new_version(speed, **changes)

    @rule(rounds=st.integers(1, 8))
    def serve(self, rounds: int) -> None:
        for _ in range(rounds):
            self.world.serve()
            self.pass_over()

    @rule(speed=st.none() | SPEEDS, rounds=st.integers(4, 16))
    def trouble_is_over_and_time_passes(self, speed: float | None, rounds: int) -> None:
        world = self.world
        world.paused, world.mode, world.ledger_problem = False, Mode.AUTO, ""
        world.policy = world.policy or RolloutPolicy()
        world.target = world.target or LiveTarget(digest=TARGETS[0])
        world.scale(max(1, len(world.replicas)))
        for replica in world.replicas:
            replica.ready = replica.reachable = True
        if speed is not None:
            self.new_version(speed)
        self.serve(rounds)

    @rule(kind=st.sampled_from(ActionType), version=st.none() | st.integers(1, 6))
    def ask(self, kind: ActionType, version: int | None) -> None:
        self.check(self.world.ask(kind, version))

    @rule()
    def killed_after_its_verdicts(self) -> None:
        self.world.look(keep_state=False)
        self.pass_over()

    @rule()
    def status_lost(self) -> None:
        # Agents that are there and the ledger bring the generation back; where neither is, it may begin anew.
        self.world.state, self.generation = RunState(), 0
        self.pass_over()

    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        self.world.scale(replicas)
        self.pass_over()

    @rule(index=st.integers(0, 3))
    def pod_replaced(self, index: int) -> None:
        self.world.restart_pod(index)
        self.pass_over()

    @rule(index=st.integers(0, 3), ready=st.booleans(), reachable=st.booleans())
    def pod_changes(self, index: int, ready: bool, reachable: bool) -> None:
        if index < len(self.world.replicas):
            self.world.replicas[index].ready, self.world.replicas[index].reachable = ready, reachable
        self.pass_over()

    @rule(paused=st.booleans(), mode=st.sampled_from(Mode), pinned=st.integers(1, 4))
    def spec_changes(self, paused: bool, mode: Mode, pinned: int) -> None:
        self.world.paused, self.world.mode, self.world.pinned = paused, mode, pinned
        self.pass_over()

    @rule(policy=st.none() | POLICIES)
    def policy_changes(self, policy: RolloutPolicy | None) -> None:
        self.world.policy = policy
        self.pass_over()

    @rule(problem=st.sampled_from(["", "connection refused"]))
    def ledger(self, problem: str) -> None:
        self.world.ledger_problem = problem
        self.pass_over()

    @rule(seconds=st.sampled_from([-400 * 86400, -30, 400, 7200, 400 * 86400]))
    def clock_steps(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)
        self.pass_over()

    @rule(digest=st.none() | st.sampled_from(TARGETS))
    def target_changes(self, digest: str | None) -> None:
        self.world.target = LiveTarget(digest=digest) if digest else None
        self.pass_over()

    @rule(version=st.integers(1, 6), reason=st.sampled_from(["Corrupt", ""]))
    def engine_refuses(self, version: int, reason: str) -> None:
        if reason:
            self.world.refused[version] = reason
        else:
            self.world.refused.pop(version, None)
        self.pass_over()

    @rule(version=st.integers(1, 6), speed=SPEEDS)
    def drift(self, version: int, speed: float) -> None:
        self.world.speeds[version] = speed
        self.pass_over()

    @precondition(lambda self: len(self.world.evidence) > 400)
    @rule()
    def holdback_is_trimmed(self) -> None:
        run = self.world.state.candidate
        oldest = run.first_generation if run else self.world.state.generation
        self.world.evidence = [b for b in self.world.evidence if b.generation >= oldest]

    def pass_over(self) -> None:
        before, inputs = self.world.state, self.world.inputs()
        outcome = self.world.look()
        assert advance(before, inputs) == outcome, "the same question has the same answer"
        settled = advance(outcome.state, inputs)
        assert (settled.state, settled.verdicts, settled.events) == (outcome.state, (), ()), "asked again: no change"
        assert settled.plans == outcome.plans
        self.check(outcome)

    def check(self, outcome: RolloutOutcome) -> None:
        world, state = self.world, outcome.state
        assert outcome.reason
        assert outcome.message, "it always says why it waits"
        assert outcome.safe_state in {SafeState.TARGET_ONLY, SafeState.STABLE}
        assert set(outcome.plans) == {replica.uid for replica in world.replicas}
        for plan in outcome.plans.values():
            assert plan.generation == state.generation
            assert plan.resting_arm in {Arm.TARGET_ONLY, Arm.STABLE}, "a candidate runs in blocks only"
            if plan.resting_arm is Arm.STABLE and world.mode is Mode.AUTO:
                assert plan.stable == state.stable
                assert not state.fallback.active
            if world.mode is Mode.TARGET_ONLY:
                assert plan.switchback is None
        for record in outcome.verdicts:
            self.check_record(record)

    def check_record(self, record: VerdictRecord) -> None:
        agrees, said = verify_record(record, self.world.evidence)
        assert agrees, said
        if record.verdict is not Verdict.PROMOTED:
            return
        if record.decided_by == "gate":
            assert record.against_target_only is not None
            assert record.against_target_only.pairs >= 4
            assert record.against_target_only.lower > 1
            if "stable.version" in record.parameters:
                assert record.against_stable is not None
                assert record.against_stable.lower > 1
        else:
            assert record.decided_by.startswith("action-"), "else only a person promotes"

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.world.state.generation >= self.generation
        self.generation = max(self.generation, self.world.state.generation)

    @invariant()
    def each_verdict_is_recorded_once(self) -> None:
        sequences = [record.sequence for record in self.world.history]
        assert sequences == list(range(1, len(sequences) + 1))

    @invariant()
    def what_was_rejected_is_neither_candidate_nor_stable(self) -> None:
        state = self.world.state
        rejected = {entry.sha256 for entry in state.rejected}
        assert state.candidate is None or state.candidate.version.sha256 not in rejected
        assert state.stable is None or state.stable.sha256 not in rejected
        assert state.candidate is None or state.candidate.version != state.stable

    @invariant()
    def each_version_has_one_phase(self) -> None:
        phases = version_phases(self.world.state, list(self.world.versions.values()), self.world.history)
        assert set(phases) == set(self.world.versions)
        for number, report in phases.items():
            assert report.reason, number
            assert (report.phase == "Promoted") == (
                self.world.state.stable == ref(number).model_copy(update={"sha256": self.world.versions[number].sha256})
            )


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
