"""The rollout's table of transitions, applied until none fires; then plans, and the reason for waiting."""

from collections.abc import Callable
from datetime import datetime

from speculator_operator.gate import Decision, GateReport, decide

from . import actions, canary, fallback
from .context import Pass
from .plans import build_plans, safe_state
from .records import apply_record
from .state import RunState, SafeState, VersionPhase
from .types import Mode, RolloutInputs, RolloutOutcome


def adopt_history(p: Pass) -> bool:
    """Take up verdicts of the ledger that the state lacks: a crash came between the two, or the state is new."""
    newer = sorted(
        (record for record in p.inputs.history if record.sequence > p.state.sequence),
        key=lambda record: record.sequence,
    )
    for record in newer:
        p.state = apply_record(p.state, record)
    return bool(newer)


def pin_policy(p: Pass) -> bool:
    """Without a run the present policy is the one that holds."""
    return p.run is None and p.inputs.policy is not None and p.change(policy=p.inputs.policy)


TRANSITIONS: tuple[tuple[str, Callable[[Pass], bool]], ...] = (
    # from                       to                              when
    ("any -> as recorded", adopt_history),  # the ledger has later verdicts
    ("any -> as asked", actions.act),  # a person's action with a new id
    ("no run -> policy pinned", pin_policy),
    ("run -> suspended, and back", canary.suspend),  # paused, not Auto, no policy
    ("serving <-> fallen back", fallback.judge_stable),  # holdback evidence, a changed target
    ("Validating, Canary -> Rejected", canary.refuse),  # incompatible, corrupt
    ("Validating -> Superseded", canary.supersede_waiting),  # a newer version, nothing measured yet
    ("Validating -> Expired", canary.give_up_loading),
    ("Validating -> Canary", canary.begin_canary),  # a replica runs it
    ("Canary -> next step, Promoted, Rejected, Expired", canary.judge),
    ("Published -> Validating", canary.take_up),
    ("run -> its replicas", canary.choose_pods),
)

MOST_TRANSITIONS = 200
"""More in one pass than any sequence of versions can need: a loop in the table is a bug that must show."""


def advance(state: RunState, inputs: RolloutInputs) -> RolloutOutcome:
    """The next state, with plans, verdicts and events. Pure; see the package's documentation for the contract."""
    p = Pass(state, inputs)
    fired = 0
    while any(transition(p) for _, transition in TRANSITIONS):
        fired += 1
        if fired > MOST_TRANSITIONS:
            raise RuntimeError(f"the rollout does not settle: {p.state.reason}, {[e.reason for e in p.events[-5:]]}")
    plans = build_plans(p)
    report = p.canary_report()
    decision = None
    if report is not None and p.state.policy is not None and p.run is not None:
        decision = decide(report, p.state.policy.gate, canary.cap_reached(p))
    holdback = p.holdback_report()
    serving, _ = safe_state(p)
    reason, message = _explain(p, serving, decision, holdback)
    p.change(reason=reason, message="" if p.run is None else _shortened(reason, p))
    frozen = p.policy is not None and p.state.guardrail_rejections >= p.policy.freeze_after_guardrails
    return RolloutOutcome(
        state=p.state,
        plans=plans,
        verdicts=tuple(p.verdicts),
        events=tuple(p.events),
        reason=reason,
        message=message,
        safe_state=serving,
        canary=report,
        decision=decision,
        holdback=holdback,
        freeze_publishing=frozen,
        policy_drift=p.run is not None and inputs.policy is not None and inputs.policy != p.state.policy,
        requeue_seconds=_requeue(p),
    )


def _shortened(reason: str, p: Pass) -> str:
    """What the state keeps of the message: nothing that changes with each pair, else each pass would write it."""
    run = p.run
    return f"{reason} since {run.started_at:%Y-%m-%dT%H:%M:%SZ}" if run else ""


def _explain(p: Pass, serving: SafeState, decision: Decision | None, holdback: GateReport | None) -> tuple[str, str]:
    """Why the rollout is where it is: the first thing that holds it up, else what it does."""
    i = p.inputs
    if i.ledger_problem:
        return "LedgerUnavailable", f"nothing is decided: {i.ledger_problem}"
    if i.paused:
        return "Paused", "paused by spec.paused: no candidate is tried, what serves goes on"
    if i.mode is Mode.TARGET_ONLY:
        return "TargetOnlyMode", "spec.mode is TargetOnly: no drafter serves and none is tried"
    if i.mode is Mode.PINNED:
        return _explain_pinned(p, serving)
    if i.policy is None:
        return "PolicyUnresolved", f"no candidate is tried: {i.policy_problem or 'the SyncPolicy cannot be read'}"
    if p.run is not None:
        return _explain_run(p, decision)
    ends = canary.cool_down_ends(p)
    if ends is not None and canary.waiting_versions(p):
        return "CoolDown", f"the next candidate is tried from {ends:%H:%M:%S} UTC on"
    if canary.waiting_versions(p):
        missing = "no replica has said which target it serves" if i.target is None else "there is no replica"
        return "WaitingForReplicas", f"a version waits: {missing}"
    stable = p.state.stable
    if stable is None:
        return "WaitingForFirstVersion", "target-only decoding serves until a first version is promoted"
    if p.state.fallback.active:
        probing = f"; {_figures(holdback)}" if holdback else ""
        return "FallenBack", f"version {stable.version} gave way to target-only ({p.state.fallback.reason}){probing}"
    return "Holding", f"version {stable.version} serves; {_figures(holdback)}"


def _explain_pinned(p: Pass, serving: SafeState) -> tuple[str, str]:
    number = p.inputs.pinned_version
    if serving is SafeState.STABLE:
        return "Pinned", f"version {number} serves because spec.pinnedVersion names it; nothing is gated"
    ref = p.find(number)
    why = p.misfit(ref) if ref else "the ledger has no such version"
    return "PinnedUnusable", f"target-only decoding serves: version {number} cannot, {why}"


def _explain_run(p: Pass, decision: Decision | None) -> tuple[str, str]:
    run, policy = p.run, p.state.policy
    assert run is not None
    assert policy is not None
    number = run.version.version
    if run.phase is VersionPhase.VALIDATING:
        return "Loading", f"version {number} is loaded on {', '.join(run.pods) or 'no replica yet'}; " + (
            canary.loading_problem(p) or "it is measured from then on"
        )
    where = f"version {number}, step {run.step + 1} of {len(policy.steps)}"
    if run.step_passed_at is not None:
        ends = canary.pause_ends(p)
        if ends is not None:
            return "StepPause", f"{where} passed and pauses until {ends:%H:%M:%S} UTC"
        if policy.steps[run.step].wait_for_promote:
            return "WaitingForPromote", f"{where} passed and waits for a Promote action"
    missing = [name for name in run.pods if not any(agent.pod == name for agent in p.inputs.agents.values())]
    silent = f"; no answer from {', '.join(missing)}" if missing else ""
    return "CollectingPairs", f"{where}: {decision.message if decision else 'no evidence yet'}{silent}"


def _figures(report: GateReport | None) -> str:
    interval = report.against_target_only.interval if report else None
    if interval is None:
        pairs = report.against_target_only.pairs if report else 0
        return f"{pairs} holdback pairs so far, too few for a bound"
    return (
        f"speedup {interval.estimate:.3f} ({interval.lower:.3f} to {interval.upper:.3f}) over target-only, "
        f"latest {interval.pairs} pairs"
    )


def _requeue(p: Pass) -> float | None:
    run, policy = p.run, p.state.policy
    due: list[datetime | None] = [canary.cool_down_ends(p), canary.pause_ends(p)]
    soonest = min((moment for moment in due if moment is not None), default=None)
    if soonest is not None:
        return max(0.0, (soonest - p.now).total_seconds())
    if run is not None and policy is not None:
        return min(policy.block_seconds, 5.0)
    return None
