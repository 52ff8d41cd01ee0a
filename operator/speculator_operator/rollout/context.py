"""One pass over a rollout: the state as it changes, and what the transitions look at."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from speculator_operator.gate import GateReport, alpha_of_candidate, evaluate, evaluate_holdback
from speculator_runtime.contracts.ledger import Manifest, Verdict, VerdictRecord
from speculator_runtime.contracts.plan import Arm, Block, VersionRef

from .compatibility import incompatibility
from .evidence import since
from .policy import RolloutPolicy
from .records import apply_record
from .state import CandidateRun, RunState
from .types import Mode, RolloutEvent, RolloutInputs, ref_of

EVENT_OF = {
    Verdict.PROMOTED: ("Normal", "Promoted"),
    Verdict.REJECTED: ("Warning", "Rejected"),
    Verdict.KEPT_STABLE: ("Normal", "StableKept"),
    Verdict.ABORTED: ("Normal", "Aborted"),
    Verdict.FALLBACK: ("Warning", "FellBack"),
    Verdict.RECOVERED: ("Normal", "Recovered"),
}


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
    def deciding(self) -> bool:
        """Whether candidates are tried and the stable drafter is judged at all."""
        i = self.inputs
        return i.mode is Mode.AUTO and not i.paused and i.policy is not None and not i.ledger_problem

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
        if self.state.stable is not None:
            versions[Arm.STABLE] = self.state.stable
        alpha = alpha_of_candidate(policy.gate, run.ordinal)
        return evaluate(self.run_blocks(), arm=Arm.CANDIDATE, versions=versions, policy=policy.gate, alpha=alpha)

    def holdback_blocks(self) -> list[Block]:
        """Evidence of the stable drafter on its present side (serving, or fallen back)."""
        return since(self.inputs.evidence, self.state.fallback.from_generation)

    def holdback_report(self) -> GateReport | None:
        """Stable against target-only."""
        if self.state.stable is None or self.policy is None:
            return None
        return evaluate_holdback(self.holdback_blocks(), self.state.stable, self.policy.gate, self.policy.fallback)
