"""A small world around the rollout: a ledger, replicas whose agents follow their plans, and people who ask for things.

It stands in for reconcile and the agents at the rollout's seam only; blocks are made of real speeds plus noise, by the
plan each replica was given.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import exp

from speculator_operator.gate.policy import FallbackPolicy, GatePolicy
from speculator_operator.rollout import (
    Action,
    ActionType,
    LiveTarget,
    Mode,
    Pod,
    RolloutInputs,
    RolloutOutcome,
    RolloutPolicy,
    RunState,
    advance,
)
from speculator_runtime.contracts.control import BucketCounters, DecodeMode
from speculator_runtime.contracts.ledger import DataWindow, FileEntry, Manifest, TargetIdentity, VerdictRecord
from speculator_runtime.contracts.plan import AgentState, Arm, Block, LoadStatus, Plan, VersionRef, VersionState

START = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
TARGET = "t" * 64
SECONDS_PER_TOKEN = 0.06


def digest_of(version: int) -> str:
    """Digest of a version's weights."""
    return f"{version:064x}"


def ref(version: int) -> VersionRef:
    """Reference of a version of this world."""
    return VersionRef(version=version, sha256=digest_of(version))


def manifest(version: int, **changes: object) -> Manifest:
    """A version of the ledger that fits the target."""
    target = TargetIdentity(
        model="demo",
        digest=str(changes.pop("digest", TARGET)),
        hidden_size=int(str(changes.pop("hidden_size", 64))),
        vocab_size=int(str(changes.pop("vocab_size", 1000))),
    )
    sha256 = str(changes.pop("sha256", digest_of(version)))
    fields: dict[str, object] = {
        "version": version,
        "files": {"model.safetensors": FileEntry(sha256=sha256, size=1)},
        "target": target,
        "capture_layers": (2, 6, 9),
        "draft_vocab_size": 256,
        "vocabulary": "full",
        "vocabulary_used": 256,
        "code_version": "test",
        "training_policy_sha256": "",
        "data": DataWindow(),
        "training_step": version,
        "created": START,
    }
    return Manifest.model_validate(fields | changes)


def block(
    arm: Arm,
    index: int,
    *,
    round_: int = 0,
    speedup: float = 1.0,
    version: VersionRef | None = None,
    generation: int = 1,
    pod: str = "demo-engine-0",
    uid: str = "uid-0",
    accept_length: float = 1.5,
    finished: int = 4,
    failed: int = 0,
    ttft: float | None = 0.2,
    steps: int = 200,
    bucket: int = 1,
) -> Block:
    """A block of one bucket: 10 seconds, so many tokens as the speedup gives."""
    tokens = round(10 / SECONDS_PER_TOKEN * speedup)
    verified = 0 if arm is Arm.TARGET_ONLY else 1000
    longer = round(verified * (accept_length - 1))
    histogram = {length: count for length, count in ((1, verified - longer), (2, longer)) if count > 0}
    return Block(
        pod=pod,
        pod_uid=uid,
        generation=generation,
        index=index,
        round=round_,
        arm=arm,
        version=version,
        started=START.timestamp() + 20 * index,
        seconds=10,
        buckets={
            bucket: BucketCounters(
                steps=steps, sequences=steps, tokens=tokens, seconds=10.0, accept_histogram=histogram
            )
        },
        domains={"sql": BucketCounters(steps=steps, sequences=steps, tokens=tokens, accept_histogram=histogram)},
        requests_finished=finished,
        requests_failed=failed,
        ttft_p50_seconds=ttft,
    )


@dataclass
class Replica:
    """A pod with an agent that follows its plan."""

    name: str
    uid: str
    ready: bool = True
    reachable: bool = True
    plan: Plan | None = None
    blocks: int = 0
    rounds: int = 0
    loaded: set[VersionRef] = field(default_factory=set)


@dataclass
class World:
    """Everything that a rollout sees, changed by tests; `look` is one reconcile pass, `serve` lets time pass."""

    policy: RolloutPolicy | None = field(
        default_factory=lambda: RolloutPolicy(
            gate=GatePolicy(max_pairs=60),
            load_seconds=600,
            max_seconds=6 * 3600,
            fallback=FallbackPolicy(min_stay_seconds=0),
        )
    )
    speeds: dict[int, float] = field(default_factory=dict)
    """Version -> speedup over target-only; 1.3 unless said."""
    accept_lengths: dict[int, float] = field(default_factory=dict)
    failing: set[int] = field(default_factory=set)
    """Versions under which a third of the requests fail."""
    refused: dict[int, str] = field(default_factory=dict)
    """Version -> reason with which engines refuse it."""
    unfetchable: dict[int, str] = field(default_factory=dict)
    """Version -> why agents cannot fetch it yet."""
    noise: float = 0.05
    seed: int = 0
    now: datetime = START
    state: RunState = field(default_factory=RunState)
    versions: dict[int, Manifest] = field(default_factory=dict)
    history: list[VerdictRecord] = field(default_factory=list)
    evidence: list[Block] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=lambda: [Replica("demo-engine-0", "uid-0")])
    target: LiveTarget | None = field(default_factory=lambda: LiveTarget(digest=TARGET))
    mode: Mode = Mode.AUTO
    pinned: int | None = None
    paused: bool = False
    action: Action | None = None
    ledger_problem: str = ""
    outcome: RolloutOutcome | None = None
    outcomes: list[RolloutOutcome] = field(default_factory=list)
    actions: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    # What people and programs do

    def publish(self, version: int, speedup: float | None = None, **changes: object) -> None:
        """A version comes to the ledger."""
        self.versions[version] = manifest(version, **changes)
        if speedup is not None:
            self.speeds[version] = speedup

    def ask(self, kind: ActionType, version: int | None = None) -> RolloutOutcome:
        """An action with a new id, and the pass that sees it."""
        self.actions += 1
        self.action = Action(f"action-{self.actions}", kind, version)
        return self.look()

    def scale(self, replicas: int) -> None:
        """The StatefulSet is scaled."""
        del self.replicas[replicas:]
        for index in range(len(self.replicas), replicas):
            self.replicas.append(Replica(f"demo-engine-{index}", f"uid-{index}-{self.random.random()}"))

    def restart_pod(self, index: int) -> None:
        """A pod is deleted; one of the same name takes its place."""
        if index < len(self.replicas):
            self.replicas[index] = Replica(self.replicas[index].name, f"uid-{index}-{self.random.random()}")

    def change_policy(self, **changes: object) -> None:
        """Edit the SyncPolicy."""
        assert self.policy is not None
        self.policy = RolloutPolicy.model_validate(self.policy.model_dump() | changes)

    # Time

    def inputs(self) -> RolloutInputs:
        """The present snapshot."""
        return RolloutInputs(
            now=self.now,
            policy=self.policy,
            policy_problem="" if self.policy else "SyncPolicy standard was not found",
            pods=[Pod(replica.name, replica.uid, replica.ready) for replica in self.replicas],
            agents={replica.uid: self._agent(replica) for replica in self.replicas if replica.reachable},
            versions=[] if self.ledger_problem else list(self.versions.values()),
            evidence=list(self.evidence),
            history=list(self.history),
            target=self.target,
            mode=self.mode,
            pinned_version=self.pinned,
            paused=self.paused,
            action=self.action,
            ledger_problem=self.ledger_problem,
        )

    def look(self, keep_state: bool = True) -> RolloutOutcome:
        """One pass, applied: verdicts, state, plans. keep_state False: killed after the verdicts were written."""
        outcome = advance(self.state, self.inputs())
        known = {record.sequence for record in self.history}
        self.history += [record for record in outcome.verdicts if record.sequence not in known]
        self.outcome = outcome
        self.outcomes.append(outcome)
        if keep_state:
            self.state = RunState.from_status(outcome.state.to_status())
            for replica in self.replicas:
                plan = outcome.plans[replica.uid]
                if (
                    replica.reachable
                    and replica.ready
                    and (replica.plan is None or plan.generation > replica.plan.generation)
                ):
                    replica.plan, replica.blocks, replica.rounds = plan, 0, 0
        return outcome

    def serve(self, rounds: int = 1) -> None:
        """Each replica runs so many rounds of its plan (a holdback's rest included); blocks reach the ledger."""
        longest = 60.0
        for replica in self.replicas:
            plan = replica.plan
            if not (replica.ready and replica.reachable and plan is not None and plan.switchback is not None):
                continue
            longest = max(longest, 20.0 * len(plan.switchback.arms) + plan.switchback.rest_seconds)
            for _ in range(rounds):
                self._round(replica, plan)
        self.now += timedelta(seconds=longest * rounds)

    def run(self, rounds: int, until: Callable[["World"], bool] | None = None) -> int:
        """Rounds and passes in turn, until something holds; how many rounds it took."""
        for count in range(rounds):
            self.look()
            if until is not None and until(self):
                return count
            self.serve()
        self.look()
        return rounds

    def promote_first(self, version: int = 1, speedup: float = 1.3) -> None:
        """Day 0 is over: a version is stable."""
        self.publish(version, speedup)
        self.run(40, lambda world: world.state.stable == ref(version))
        assert self.state.stable == ref(version), self.outcome and self.outcome.message

    def _round(self, replica: Replica, plan: Plan) -> None:
        assert plan.switchback is not None
        arms = list(plan.switchback.arms)
        self.random.shuffle(arms)
        for arm in arms:
            version = {Arm.STABLE: plan.stable, Arm.CANDIDATE: plan.candidate}.get(arm)
            if version is not None and (version.version in self.refused or version.version in self.unfetchable):
                continue
            speedup = 1.0
            if version is not None:
                replica.loaded.add(version)
                speedup = self.speeds.get(version.version, 1.3)
            made = block(
                arm,
                replica.blocks,
                round_=replica.rounds,
                speedup=speedup * exp(self.random.gauss(0, self.noise)),
                version=version,
                generation=plan.generation,
                pod=replica.name,
                uid=replica.uid,
                accept_length=self.accept_lengths.get(version.version, 1.5) if version else 1.5,
                failed=2 if version is not None and version.version in self.failing else 0,
            )
            self.evidence.append(made)
            replica.blocks += 1
        replica.rounds += 1

    def _agent(self, replica: Replica) -> AgentState:
        plan = replica.plan
        named = [one for one in (plan.stable, plan.candidate) if one is not None] if plan else []
        states = []
        for one in named:
            if one.version in self.refused:
                reason = self.refused[one.version]
                states.append(
                    VersionState(ref=one, status=LoadStatus.REFUSED, reason=reason, message=f"it is {reason}")
                )
            elif one.version in self.unfetchable:
                why = self.unfetchable[one.version]
                states.append(VersionState(ref=one, status=LoadStatus.PENDING, reason="FetchFailed", message=why))
            else:
                status = LoadStatus.LOADED if one in replica.loaded else LoadStatus.FETCHED
                states.append(VersionState(ref=one, status=status))
        return AgentState(
            pod=replica.name,
            pod_uid=replica.uid,
            plan_generation=plan.generation if plan else 0,
            engine_healthy=replica.ready,
            mode=DecodeMode.TARGET_ONLY,
            arm=Arm.TARGET_ONLY,
            target_digest=self.target.digest if self.target else "",
            versions=states,
        )


def without(inputs: RolloutInputs, **changes: object) -> RolloutInputs:
    """A snapshot with some fields changed."""
    return replace(inputs, **changes)  # type: ignore[arg-type]
