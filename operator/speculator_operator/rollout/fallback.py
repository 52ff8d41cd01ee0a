"""Whether the stable drafter serves or gives way to target-only decoding: measured down, measured up, never blind."""

from speculator_operator.gate import Move, judge_holdback
from speculator_runtime.contracts.ledger import Verdict

from .context import Pass
from .records import make_record


def judge_stable(p: Pass) -> bool:
    """Change sides when the holdback's evidence says so."""
    state, policy = p.state, p.policy
    if state.stable is None or policy is None or not p.protecting:
        return False
    fallback = state.fallback
    live = p.inputs.target.digest if p.inputs.target else ""
    if not fallback.active and live and fallback.qualified_target != live and (misfit := p.misfit(state.stable)):
        message = f"target-only until it is measured again: {misfit}"
        return p.conclude(make_record(state, state.stable, Verdict.FALLBACK, ("TargetChanged", message), p.now))
    refusal = p.refusal(state.stable)
    if refusal is not None:
        if fallback.active:
            return False
        message = f"target-only: {refusal[1]}; roll back, or wait for another version"
        return p.conclude(make_record(state, state.stable, Verdict.FALLBACK, ("StableRefused", message), p.now))
    if not policy.fallback.enabled and not fallback.active:
        return False
    if fallback.since is not None and p.ahead(fallback.since, policy.fallback.min_stay_seconds):
        return False
    report = p.holdback_report()
    if report is None:
        return False
    move, reason, message = judge_holdback(report, policy.fallback, fallback.active)
    if move is Move.STAY:
        return False
    verdict = Verdict.FALLBACK if move is Move.DOWN else Verdict.RECOVERED
    record = make_record(
        state,
        state.stable,
        verdict,
        (reason, message),
        p.now,
        report=report,
        blocks=p.holdback_blocks(),
        gate=policy.gate,
        fallback=policy.fallback,
        extra={"target": live, "blocksPerPod": p.holdback_blocks_per_pod},
    )
    return p.conclude(record)
