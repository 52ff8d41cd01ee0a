"""The status of a Speculator, from the snapshot and the rollout's answer. One word, one sentence, and the figures."""

from collections.abc import Sequence

from speculator_operator.api.base import ApiModel, decimal_string, number
from speculator_operator.api.resolve import policy_sha256
from speculator_operator.api.speculator import Mode
from speculator_operator.api.status import (
    REJECTED_LIMIT,
    Condition,
    FallbackStatus,
    LastAction,
    Phase,
    PinnedPolicy,
    RejectedVersion,
    Run,
    SpeculatorStatus,
    Speedup,
    TrainerSummary,
    VersionRefStatus,
)
from speculator_operator.gate.spending import alpha_of_candidate
from speculator_operator.reconcile.view import View
from speculator_operator.rollout import CandidateRun
from speculator_runtime.contracts.control import DecodeMode
from speculator_runtime.contracts.ledger import Interval
from speculator_runtime.contracts.plan import VersionRef


def build_status(view: View, conditions: Sequence[Condition], directive_generation: int) -> SpeculatorStatus:
    """The whole status. Times in it are those of transitions: the same snapshot later gives the same status."""
    observed, state = view.observed, view.state
    speculator = observed.speculator
    earlier = speculator.status
    digests = {agent.target_digest for agent in view.agents if agent.target_digest}
    status = SpeculatorStatus(
        observed_generation=speculator.metadata.generation,
        phase=phase_of(view, conditions),
        message=sentence(view, conditions),
        conditions=list(conditions),
        replicas=len([pod for pod in view.engines if not pod.terminating]),
        ready_replicas=len(view.ready_engines),
        selector=f"speculator.dev/speculator={speculator.metadata.name},app.kubernetes.io/component=engine",
        mode=DecodeMode.SPECULATIVE if view.speculating else DecodeMode.TARGET_ONLY,
        stable=_ref(state.stable),
        candidate=_ref(view.candidate),
        step=_step(view),
        speedup=_speedup(view),
        target_digest=digests.pop() if len(digests) == 1 else earlier.target_digest,
        plan_generation=state.generation,
        directive_generation=directive_generation,
        candidates_tried=state.ordinal,
        run=_run(view, state.candidate) if state.candidate else None,
        rollout=state.to_status(),
        fallback=FallbackStatus(
            active=state.fallback.active, since=state.fallback.since, reason=state.fallback.reason[:256]
        )
        if state.fallback.active
        else None,
        last_action=_last_action(view),
        rejected_digests=[
            RejectedVersion(version=entry.version, sha256=entry.sha256, reason=entry.reason[:256])
            for entry in state.rejected[-REJECTED_LIMIT:]
        ],
        latest_version=max([entry.manifest.version for entry in observed.ledger.versions], default=0)
        or earlier.latest_version,
        trainer=_trainer(view),
    )
    return status if observed.refresh_figures or _moved(earlier, status) else _with_old_figures(earlier, status)


def phase_of(view: View, conditions: Sequence[Condition]) -> Phase:
    """One word, from the conditions and the mode."""
    holds = {condition.type: condition.status == "True" for condition in conditions}
    if holds["Degraded"]:
        return Phase.DEGRADED
    if holds["Paused"]:
        return Phase.PAUSED
    if not holds["Ready"]:
        return Phase.STARTING if view.engines else Phase.PENDING
    if view.mode != Mode.AUTO:
        return Phase.TARGET_ONLY if view.mode == Mode.TARGET_ONLY else Phase.PINNED
    if view.state.candidate:
        return Phase.CANARY
    if view.state.fallback.active:
        return Phase.FALLBACK
    return Phase.STABLE if view.state.stable else Phase.LEARNING


def sentence(view: View, conditions: Sequence[Condition]) -> str:
    """The one message worth showing: what is wrong, else what is waited for, else what the rollout does."""
    found = {condition.type: condition for condition in conditions}
    if found["Degraded"].status == "True":
        return found["Degraded"].message[:4096]
    if found["Paused"].status == "True":
        return found["Paused"].message
    if found["Ready"].status != "True":
        return found["Ready"].message[:4096]
    return view.rollout.message[:4096]


def measured_speedup(view: View) -> Interval | None:
    """Over target-only: the candidate's while one is on trial, else the stable drafter's, else as at its promotion."""
    report = view.rollout.canary if view.state.candidate else view.rollout.holdback
    if report is not None and report.against_target_only.interval is not None:
        return report.against_target_only.interval
    if view.state.candidate or view.state.stable is None:
        return None
    records = [r for r in view.history if r.version == view.state.stable and r.against_target_only]
    latest = max(records, key=lambda record: record.sequence, default=None)
    return latest.against_target_only if latest else None


def _ref(ref: VersionRef | None) -> VersionRefStatus | None:
    return VersionRefStatus.of(ref) if ref else None


def _step(view: View) -> str:
    run, policy = view.state.candidate, view.state.policy
    return f"{run.step + 1}/{len(policy.steps)}" if run and policy else ""


def _speedup(view: View) -> Speedup | None:
    interval = measured_speedup(view)
    if interval is not None:
        return Speedup.of(interval)
    earlier = view.observed.speculator.status
    unread = view.observed.ledger.problem is not None and not view.observed.ledger.read
    same = earlier.stable == _ref(view.state.stable) and earlier.candidate == _ref(view.candidate)
    # A new leader that cannot read the ledger yet does not know better than the status.
    return earlier.speedup if unread and same else None


def _run(view: View, run: CandidateRun) -> Run:
    policy = view.state.policy
    earlier = view.observed.speculator.status.run
    if earlier and earlier.id == run.run_id:
        began = earlier.stable, earlier.training_policy, earlier.sync_policy
    else:
        training, sync = view.observed.training_policy, view.observed.sync_policy
        began = (
            _ref(view.state.stable),
            _pinned(training.name, training.generation, training.spec),
            _pinned(sync.name, sync.generation, sync.spec),
        )
    alpha = alpha_of_candidate(policy.gate, run.ordinal) if policy else 0.0
    return Run(
        id=run.run_id,
        candidate=VersionRefStatus.of(run.version),
        stable=began[0],
        started_at=run.started_at,
        alpha=decimal_string(alpha, 8),
        ordinal=run.ordinal,
        step=run.step,
        paused_since=run.step_passed_at,
        plan_generation=run.first_generation,
        training_policy=began[1],
        sync_policy=began[2],
    )


def _pinned(name: str, generation: int, spec: ApiModel | None) -> PinnedPolicy:
    return PinnedPolicy(name=name, generation=generation, sha256=policy_sha256(spec) if spec else "")


def _last_action(view: View) -> LastAction | None:
    echo = view.state.last_action
    if echo is None:
        return None
    return LastAction(
        id=echo.id,
        type=echo.type.value,
        result="Done" if echo.accepted else "Refused",
        message=echo.message[:4096],
        at=echo.at,
    )


def _trainer(view: View) -> TrainerSummary | None:
    status = view.observed.trainer
    if status is None:
        return view.observed.speculator.status.trainer
    length = status.train_accept_length
    return TrainerSummary(
        phase=status.phase,
        message=status.message[:4096],
        step=status.step,
        requests_received=status.requests_received,
        requests_dropped=status.requests_dropped,
        buffer_samples=status.buffer_samples,
        published=status.published,
        latest_version=status.latest.version if status.latest else None,
        train_accept_length=decimal_string(length) if length is not None and length >= 0 else None,
    )


def _moved(earlier: SpeculatorStatus, later: SpeculatorStatus) -> bool:
    """Whether something beside the figures changed, so that a write is due anyway."""
    return _with_old_figures(earlier, later) != earlier


def _with_old_figures(earlier: SpeculatorStatus, later: SpeculatorStatus) -> SpeculatorStatus:
    """The later status with the earlier figures of training; its phase and versions are news, its counters are not."""
    if earlier.trainer is None or later.trainer is None:
        return later
    was, now = earlier.trainer, later.trainer
    if (was.phase, was.published, was.latest_version) != (now.phase, now.published, now.latest_version):
        return later
    return later.model_copy(update={"trainer": was})


def speedup_bounds(status: SpeculatorStatus) -> tuple[float | None, float | None, int]:
    """Estimate, lower bound and pairs, for metrics."""
    if status.speedup is None:
        return None, None, 0
    return number(status.speedup.estimate), number(status.speedup.lower), status.speedup.pairs
