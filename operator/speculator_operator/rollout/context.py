"""One pass over a rollout: the state as it changes, and what the transitions look at."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from speculator_operator.gate import GateReport, alpha_of_candidate, evaluate, evaluate_holdback
from speculator_runtime.contracts.ledger import Manifest, Verdict, VerdictRecord
from speculator_runtime.contracts.plan import Arm, Block, LoadStatus, VersionRef

from .compatibility import incompatibility
from .evidence import latest, since
from .policy import RolloutPolicy
from .records import apply_record
from .state import CandidateRun, RunState
from .types import Action, Mode, RolloutEvent, RolloutInputs, ref_of

EVENT_OF = {
    Verdict.PROMOTED: ("Normal", "Promoted"),
    Verdict.REJECTED: ("Warning", "Rejected"),
    Verdict.KEPT_STABLE: ("Normal", "StableKept"),
    Verdict.ABORTED: ("Normal", "Aborted"),
    Verdict.FALLBACK: ("Warning", "FellBack"),
    Verdict.RECOVERED: ("Normal", "Recovered"),
}

HOLDBACK_BLOCKS_PER_PAIR = 8
"""A round has two or three blocks, some are dropped."""

CLOCK_STEP = timedelta(minutes=1)
"""A clock that differs by more was set, not adjusted."""


def is_new(p: "Pass", action: Action) -> bool:
    """An action that was neither carried out nor refused yet."""
    return p.state.last_action is None or p.state.last_action.id != action.id


@dataclass
class Pass:
    """Working memory of one call of `advance`."""

    state: RunState
    inputs: RolloutInputs
    verdicts: list[VerdictRecord] = field(default_factory=list)
    events: list[RolloutEvent] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        """When the snapshot was taken."""
        return self.inputs.now

    @property
    def run(self) -> CandidateRun | None:
        """The candidate's run."""
        return self.state.candidate

    @property
    def policy(self) -> RolloutPolicy | None:
        """The pinned policy while a run lasts, else the present one (the latest known while it cannot be resolved)."""
        return self.state.policy if self.state.candidate else self.inputs.policy or self.state.policy

    @property
    def protecting(self) -> bool:
        """Whether the stable drafter's fallback and return are decided.

        A pause or a policy that cannot be resolved holds up what is new, never the protection of what serves. (A
        candidate that is suspended runs nowhere: nothing needs protection from it.)
        """
        return self.inputs.mode is Mode.AUTO and not self.inputs.ledger_problem

    @property
    def deciding(self) -> bool:
        """Whether candidates are tried, moved on and ended."""
        return self.protecting and not self.inputs.paused and self.inputs.policy is not None

    @cached_property
    def manifests(self) -> dict[int, Manifest]:
        """By version number."""
        return {manifest.version: manifest for manifest in self.inputs.versions}

    def find(self, version: int | None) -> VersionRef | None:
        """The version in the ledger."""
        manifest = self.manifests.get(version) if version is not None else None
        return ref_of(manifest) if manifest else None

    def misfit(self, ref: VersionRef) -> str:
        """Why a version does not fit the live target; empty when it does or when that is not known."""
        manifest = self.manifests.get(ref.version)
        if manifest is None or self.inputs.target is None:
            return ""
        return incompatibility(manifest, self.inputs.target)

    def refusal(self, ref: VersionRef) -> tuple[str, str] | None:
        """Reason and sentence if a replica's engine refused the version."""
        for pod in sorted(self.inputs.agents):
            agent = self.inputs.agents[pod]
            for entry in agent.versions:
                if entry.ref == ref and entry.status is LoadStatus.REFUSED:
                    said = entry.message or entry.reason or "no reason given"
                    return entry.reason or "Refused", f"the engine of {agent.pod} refused it: {said}"
        return None

    def objection(self, ref: VersionRef) -> tuple[str, str] | None:
        """Reason and sentence why a version cannot serve on these replicas; None when nothing is known against it."""
        misfit = self.misfit(ref)
        return ("Incompatible", misfit) if misfit else self.refusal(ref)

    @property
    def measurable_stable(self) -> VersionRef | None:
        """The stable drafter, if replicas can run it: a candidate is not compared with one that they cannot."""
        stable = self.state.stable
        if stable is None or self.refusal(stable) is not None:
            return None
        live = self.inputs.target.digest if self.inputs.target else ""
        requalified = bool(live) and self.state.fallback.qualified_target == live
        return stable if requalified or not self.misfit(stable) else None

    def ahead(self, start: datetime, seconds: float) -> datetime | None:
        """When a wait of so many seconds from `start` ends; None: it is over.

        A start well in the future was written by a clock that has been set back since: such a wait is over too.
        """
        ends = start + timedelta(seconds=seconds)
        return ends if ends > self.now and start - self.now < CLOCK_STEP else None

    def change(self, **update: object) -> bool:
        """Set fields of the state; True if anything changed."""
        changed = self.state.model_copy(update=update)
        if changed == self.state:
            return False
        self.state = changed
        return True

    def change_run(self, **update: object) -> bool:
        """Set fields of the candidate's run; True if anything changed."""
        run = self.state.candidate
        return run is not None and self.change(candidate=run.model_copy(update=update))

    def event(self, reason: str, message: str, kind: str = "Normal") -> None:
        """Tell a transition."""
        self.events.append(RolloutEvent(kind, reason, message))

    def conclude(self, record: VerdictRecord) -> bool:
        """Take a verdict: into the state, to the ledger, and told."""
        self.state = apply_record(self.state, record)
        self.verdicts.append(record)
        kind, reason = EVENT_OF[record.verdict]
        self.event(reason, f"version {record.version.version}: {record.message}"[:900], kind)
        return True

    def run_blocks(self) -> list[Block]:
        """Evidence of the candidate's run."""
        run = self.state.candidate
        return since(self.inputs.evidence, run.first_generation) if run else []

    def canary_report(self) -> GateReport | None:
        """What the run's evidence says."""
        run, policy = self.state.candidate, self.state.policy
        if run is None or policy is None:
            return None
        versions = {Arm.CANDIDATE: run.version}
        if self.measurable_stable is not None:
            versions[Arm.STABLE] = self.measurable_stable
        alpha = alpha_of_candidate(policy.gate, run.ordinal)
        return evaluate(self.run_blocks(), arm=Arm.CANDIDATE, versions=versions, policy=policy.gate, alpha=alpha)

    def holdback_blocks(self) -> list[Block]:
        """Evidence of the stable drafter on its present side (serving, or fallen back).

        Only the latest: a drafter may be stable for months, and target-only times shall be of the same days.
        """
        return latest(since(self.inputs.evidence, self.state.fallback.from_generation), self.holdback_blocks_per_pod)

    @property
    def holdback_blocks_per_pod(self) -> int:
        """Blocks of one replica that the holdback looks at: more than twice as many rounds as its window."""
        return HOLDBACK_BLOCKS_PER_PAIR * self.policy.fallback.window_pairs if self.policy else 0

    def holdback_report(self) -> GateReport | None:
        """Stable against target-only."""
        if self.state.stable is None or self.policy is None:
            return None
        return evaluate_holdback(self.holdback_blocks(), self.state.stable, self.policy.gate, self.policy.fallback)
