"""Transitions of a candidate: taken up, loaded, measured step by step, ended. Each answers whether it fired."""

from datetime import datetime

from speculator_operator.gate import Decision, Outcome, decide
from speculator_operator.gate.types import GateReport
from speculator_runtime.contracts.ledger import Verdict
from speculator_runtime.contracts.plan import Arm, LoadStatus, VersionRef

from .context import Pass, is_new
from .policy import OnInconclusive, RolloutPolicy, Supersede
from .records import make_record
from .state import ActionType, CandidateRun, VersionPhase
from .types import Mode


def waiting_versions(p: Pass) -> list[VersionRef]:
    """Versions that could be tried, in the order in which they would be."""
    passed_over = {entry.sha256 for entry in p.state.rejected}
    if p.state.stable is not None:
        passed_over.add(p.state.stable.sha256)
    fresh = [
        VersionRef(version=number, sha256=manifest.sha256)
        for number, manifest in sorted(p.manifests.items())
        if number > p.state.considered and manifest.sha256 not in passed_over
    ]
    if p.policy is not None and p.policy.supersede is Supersede.LATEST:
        fresh.reverse()
    return [p.state.retry, *fresh] if p.state.retry else fresh


def cool_down_ends(p: Pass) -> datetime | None:
    """When the next canary may begin; None: now."""
    if p.policy is None or p.state.last_run_ended is None or p.state.retry:
        return None
    return p.ahead(p.state.last_run_ended, p.policy.cool_down_seconds)


def take_up(p: Pass) -> bool:
    """Begin the run of the next version, if everything that it needs is there."""
    if p.run is not None or not p.deciding or p.inputs.policy is None or p.inputs.target is None or not p.inputs.pods:
        return False
    waiting = waiting_versions(p)
    if not waiting or cool_down_ends(p) is not None:
        return False
    ref, ordinal = waiting[0], p.state.ordinal + 1
    run = CandidateRun(
        run_id=f"{ref.version:06d}-{ref.sha256[:8]}-{ordinal}",
        version=ref,
        ordinal=ordinal,
        phase=VersionPhase.VALIDATING,
        started_at=p.now,
        first_generation=p.state.generation + 1,
    )
    retried = p.state.retry == ref
    p.change(
        candidate=run,
        ordinal=ordinal,
        policy=p.inputs.policy,
        considered=max(p.state.considered, ref.version),
        retry=None if retried else p.state.retry,
    )
    p.event("Validating", f"version {ref.version} is taken up{' again' if retried else ''} as candidate {ordinal}")
    return True


def supersede_waiting(p: Pass) -> bool:
    """A newer version takes the place of one that no replica has begun to load."""
    run = p.run
    if run is None or run.phase is not VersionPhase.VALIDATING or not p.deciding:
        return False
    if p.state.policy is None or p.state.policy.supersede is not Supersede.LATEST or _under_way(p, run):
        return False
    newer = [ref for ref in waiting_versions(p) if ref.version > run.version.version]
    if not newer:
        return False
    p.event("Superseded", f"version {run.version.version} gives way to {newer[0].version} before its canary began")
    _uncount(p, run)
    return p.change(candidate=None)


def _under_way(p: Pass, run: CandidateRun) -> bool:
    """A replica is at it: a trainer that publishes faster than versions load must not keep each from being tried."""
    return any(
        entry.ref == run.version and not (entry.status is LoadStatus.PENDING and entry.message)
        for agent in p.inputs.agents.values()
        for entry in agent.versions
    )


def _uncount(p: Pass, run: CandidateRun) -> None:
    """A candidate that was never measured does not count as a test."""
    if run.phase is VersionPhase.VALIDATING:
        p.change(ordinal=run.ordinal - 1)


def suspend(p: Pass) -> bool:
    """A run stands still while nothing may be decided; its cap does not count that time."""
    run = p.run
    if run is None:
        return False
    action = p.inputs.action
    # An Abort that cannot be recorded yet stops the candidate all the same.
    abort = p.inputs.ledger_problem and action is not None and action.type is ActionType.ABORT and is_new(p, action)
    still = bool(p.inputs.paused or p.inputs.policy is None or p.inputs.mode is not Mode.AUTO or abort)
    if still and run.suspended_at is None:
        return p.change_run(suspended_at=p.now)
    if not still and run.suspended_at is not None:
        stood = max(0.0, (p.now - run.suspended_at).total_seconds())
        return p.change_run(suspended_at=None, suspended_seconds=run.suspended_seconds + stood)
    return False


def refuse(p: Pass) -> bool:
    """Reject a version that does not fit the target, or that an engine refused."""
    run = p.run
    if run is None or not p.deciding:
        return False
    objection = p.objection(run.version)
    if objection is None:
        return False
    _uncount(p, run)
    return p.conclude(make_record(p.state, run.version, Verdict.REJECTED, objection, p.now, decided_by="validation"))


def choose_pods(p: Pass) -> bool:
    """Keep the canary on as many replicas as its step says; replicas that are gone are replaced."""
    run, policy = p.run, p.state.policy
    if run is None or policy is None or not p.deciding:
        return False
    names = {pod.name for pod in p.inputs.pods}
    size = policy.steps[run.step].size(len(names)) if names else 0
    kept = [name for name in run.pods if name in names]
    ready_first = sorted(p.inputs.pods, key=lambda pod: (not pod.ready, len(pod.name), pod.name))
    more = [pod.name for pod in ready_first if pod.name not in kept]
    chosen = (kept + more)[: max(size, 0)]
    return bool(chosen) and p.change_run(pods=tuple(chosen))


def begin_canary(p: Pass) -> bool:
    """The candidate runs on a replica: from now on it is measured."""
    run = p.run
    if run is None or run.phase is not VersionPhase.VALIDATING or not p.deciding:
        return False
    loaded = any(
        entry.ref == run.version and entry.status is LoadStatus.LOADED
        for agent in p.inputs.agents.values()
        for entry in agent.versions
        if agent.pod in run.pods
    )
    if not loaded and not any(block.arm is Arm.CANDIDATE for block in p.run_blocks()):
        return False
    p.change_run(phase=VersionPhase.CANARY, canary_started_at=p.now)
    p.event("CanaryStarted", f"version {run.version.version} runs on {', '.join(run.pods)} and is measured")
    return True


def give_up_loading(p: Pass) -> bool:
    """No replica could load the candidate in time: the stable drafter stays."""
    run, policy = p.run, p.state.policy
    if run is None or policy is None or run.phase is not VersionPhase.VALIDATING or not p.deciding:
        return False
    if _elapsed(p, run, run.started_at) <= policy.load_seconds:
        return False
    message = f"no replica could run it within {policy.load_seconds:.0f} s: {loading_problem(p) or 'none reports why'}"
    _uncount(p, run)
    record = make_record(p.state, run.version, Verdict.KEPT_STABLE, ("NotLoaded", message), p.now)
    return p.conclude(record)


def loading_problem(p: Pass) -> str:
    """What a replica says about a candidate that it cannot load yet."""
    run = p.run
    for agent in p.inputs.agents.values():
        for entry in agent.versions:
            if run is not None and entry.ref == run.version and entry.status is LoadStatus.PENDING and entry.message:
                return f"{agent.pod}: {entry.message}"
    return ""


def judge(p: Pass) -> bool:
    """Look at the evidence: end the run, or move it a step on."""
    run, policy = p.run, p.state.policy
    if run is None or policy is None or run.phase is not VersionPhase.CANARY or not p.deciding:
        return False
    report = p.canary_report()
    assert report is not None
    cap = cap_reached(p)
    decision = decide(report, policy.gate, cap)
    if decision.outcome is Outcome.REJECT:
        return _end(p, run, policy, Verdict.REJECTED, decision, report, cap)
    if decision.outcome is Outcome.INCONCLUSIVE:
        hold = policy.on_inconclusive is OnInconclusive.HOLD
        return _end(p, run, policy, Verdict.KEPT_STABLE if hold else Verdict.REJECTED, decision, report, cap)
    if decision.outcome is not Outcome.PROMOTE:
        return False
    return _step_on(p, run, policy, decision, report)


def _step_on(p: Pass, run: CandidateRun, policy: RolloutPolicy, decision: Decision, report: GateReport) -> bool:
    step = policy.steps[run.step]
    if report.against_target_only.pairs - run.step_first_pair < step.min_pairs:
        return False
    if (step.pause_seconds or step.wait_for_promote) and run.step_passed_at is None:
        p.event("StepPassed", f"step {run.step + 1} of {len(policy.steps)} passed: {decision.message}"[:900])
        return p.change_run(step_passed_at=p.now)
    if pause_ends(p) is not None or step.wait_for_promote:
        return False
    return next_step(p, run, policy, decision, report)


def next_step(p: Pass, run: CandidateRun, policy: RolloutPolicy, decision: Decision, report: GateReport) -> bool:
    """Leave the present step: for the next one, or for promotion after the last."""
    if run.step + 1 == len(policy.steps):
        return _end(p, run, policy, Verdict.PROMOTED, decision, report)
    p.event("NextStep", f"version {run.version.version} goes to step {run.step + 2} of {len(policy.steps)}")
    paused = max(0.0, (p.now - run.step_passed_at).total_seconds()) if run.step_passed_at else 0.0
    return p.change_run(
        step=run.step + 1,
        step_first_pair=report.against_target_only.pairs,
        step_passed_at=None,
        suspended_seconds=run.suspended_seconds + paused,
    )


def pause_ends(p: Pass) -> datetime | None:
    """When the pause of the present step is over; None: it is, or there is none."""
    run, policy = p.run, p.state.policy
    if run is None or policy is None or run.step_passed_at is None:
        return None
    return p.ahead(run.step_passed_at, policy.steps[run.step].pause_seconds)


def cap_reached(p: Pass) -> str:
    """Why no more evidence is waited for; empty while it is."""
    run, policy = p.run, p.state.policy
    if run is None or policy is None or run.canary_started_at is None or run.step_passed_at is not None:
        return ""
    # A pause at the end of a step is asked for by a person; it is not indecision.
    took = _elapsed(p, run, run.canary_started_at)
    return f"the cap of {policy.max_seconds:.0f} s is reached" if took > policy.max_seconds else ""


def _elapsed(p: Pass, run: CandidateRun, start: datetime) -> float:
    return (p.now - start).total_seconds() - run.suspended_seconds


def _end(
    p: Pass,
    run: CandidateRun,
    policy: RolloutPolicy,
    verdict: Verdict,
    decision: Decision,
    report: GateReport,
    cap: str = "",
) -> bool:
    extra: dict[str, str | int | float | bool | None] = {"capReached": cap, "guardrail": decision.guardrail}
    record = make_record(
        p.state,
        run.version,
        verdict,
        (decision.reason, decision.message),
        p.now,
        report=report,
        blocks=p.run_blocks(),
        gate=policy.gate,
        stable=p.measurable_stable,
        extra=extra,
    )
    return p.conclude(record)
