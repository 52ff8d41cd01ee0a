"""What the other parts of reconcile look at: the snapshot, digested once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from speculator_operator.api.speculator import Mode
from speculator_operator.reconcile.observed import Observed, Problem
from speculator_operator.reconcile.podhealth import PodView, view_pods
from speculator_operator.rollout import RolloutOutcome, RolloutPolicy, RunState, SafeState
from speculator_runtime.contracts.ledger import VerdictRecord
from speculator_runtime.contracts.plan import AgentState, LoadStatus, VersionRef, VersionState

TRANSIENT_LEDGER_REASONS = frozenset({"StoreUnreachable", "StoreUnavailable"})
"""Waiting may help; everything else about the store is for a person to correct."""


@dataclass(frozen=True)
class View:
    """A snapshot with the rollout's answer."""

    observed: Observed
    rollout: RolloutOutcome
    policy: RolloutPolicy | None

    @property
    def state(self) -> RunState:
        """The rollout's state after this pass."""
        return self.rollout.state

    @cached_property
    def engines(self) -> tuple[PodView, ...]:
        """Engine pods by name."""
        return view_pods(self.observed.pods, "engine")

    @cached_property
    def trainers(self) -> tuple[PodView, ...]:
        """Trainer pods; more than one only while one is replaced."""
        return view_pods(self.observed.pods, "trainer")

    @property
    def desired_replicas(self) -> int:
        """What the spec asks for."""
        return self.observed.speculator.spec.serving.replicas

    @cached_property
    def ready_engines(self) -> tuple[PodView, ...]:
        """Engine pods that serve."""
        return tuple(pod for pod in self.engines if pod.ready)

    @property
    def serving(self) -> bool:
        """Whether all replicas that are wanted serve."""
        return 0 < self.desired_replicas <= len(self.ready_engines)

    @cached_property
    def agents(self) -> Sequence[AgentState]:
        """Of the pods that answered, in the pods' order."""
        return [self.observed.agents[pod.uid] for pod in self.engines if pod.uid in self.observed.agents]

    @cached_property
    def history(self) -> Sequence[VerdictRecord]:
        """All verdicts, those of this pass included: they are written before anything that is said here."""
        return (*self.observed.ledger.history, *self.rollout.verdicts)

    @property
    def candidate(self) -> VersionRef | None:
        """The version on trial."""
        return self.state.candidate.version if self.state.candidate else None

    @property
    def speculating(self) -> bool:
        """Whether replicas decode speculatively at rest."""
        return self.rollout.safe_state != SafeState.TARGET_ONLY

    @cached_property
    def blocking_problem(self) -> Problem | None:
        """The first thing that a person must correct before the product can work."""
        observed = self.observed
        ledger = observed.ledger.problem
        permanent = ledger if ledger and ledger.reason not in TRANSIENT_LEDGER_REASONS else None
        found = [
            observed.training_policy.problem,
            observed.sync_policy.problem,
            observed.credentials,
            *observed.object_problems,
            permanent,
        ]
        return next((problem for problem in found if problem is not None), None)

    @cached_property
    def pod_problem(self) -> Problem | None:
        """The first thing that keeps a pod from running."""
        return next((pod.problem for pod in (*self.engines, *self.trainers) if pod.problem), None)

    def refusal(self, ref: VersionRef) -> VersionState | None:
        """A replica's refusal of a version, if there is one."""
        for agent in self.agents:
            for version in agent.versions:
                if version.ref == ref and version.status == LoadStatus.REFUSED:
                    return version
        return None

    @property
    def mode(self) -> Mode:
        """spec.mode."""
        return self.observed.speculator.spec.mode
