"""The decision on a candidate: promote, reject, go on, or give up. Missing evidence never promotes."""

import math

from .policy import GatePolicy
from .types import Comparison, Decision, DropReason, GateReport, Outcome


def decide(report: GateReport, policy: GatePolicy, cap_reached: str = "") -> Decision:
    """Judge a candidate's report.

    cap_reached: why no more evidence will be waited for ("4h0m0s have passed"); empty while it may go on.
    Guardrails come first, then rejection, promotion, and the caps.
    """
    broken = _guardrail(report, policy)
    if broken:
        return broken
    sides = [("target-only decoding", "TargetOnly", report.against_target_only, policy.min_speedup_target_only)]
    if report.against_stable is not None:
        sides.append(("the stable drafter", "Stable", report.against_stable, policy.min_speedup_stable))
    for name, short, comparison, bar in sides:
        if comparison.upper < math.log(bar):
            return Decision(
                Outcome.REJECT,
                f"SlowerThan{short}" if bar <= 1 else f"BelowBarAgainst{short}",
                f"the speedup over {name} is at most {_ratio(comparison.upper)} with confidence "
                f"{1 - report.alpha:.4g}, below the bar of {bar:.2f} (estimate {_ratio(comparison.mean)}, "
                f"{comparison.pairs} pairs)",
            )
    if all(comparison.lower > math.log(bar) for _, _, comparison, bar in sides):
        said = " and ".join(
            f"{_ratio(comparison.lower)} over {name} (bar {bar:.2f}, estimate {_ratio(comparison.mean)}, "
            f"{comparison.pairs} pairs)"
            for name, _, comparison, bar in sides
        )
        return Decision(
            Outcome.PROMOTE, "Faster", f"the speedup is at least {said}, each with confidence {1 - report.alpha:.4g}"
        )
    standing = "; ".join(_standing(name, comparison, bar, policy) for name, _, comparison, bar in sides)
    fewest = min(comparison.pairs for _, _, comparison, _ in sides)
    dropped = _dropped(report)
    if cap_reached or fewest >= policy.max_pairs:
        why = cap_reached or f"{fewest} pairs were compared, the cap is {policy.max_pairs}"
        reason = "NoEvidence" if fewest == 0 else "Undecided" if fewest >= policy.burn_in_pairs else "TooFewPairs"
        return Decision(Outcome.INCONCLUSIVE, reason, f"no decision: {why}; {standing}{dropped}")
    return Decision(Outcome.CONTINUE, "CollectingPairs", f"{standing}{dropped}")


def _guardrail(report: GateReport, policy: GatePolicy) -> Decision | None:
    increase = report.error_rate_increase
    if (
        report.requests >= policy.guardrail_requests
        and increase is not None
        and increase > policy.max_error_rate_increase
    ):
        return Decision(
            Outcome.REJECT,
            "ErrorRate",
            f"{report.requests_failed} of {report.requests} requests failed under the candidate, {increase:.1%} more "
            f"than under the other arms; allowed is {policy.max_error_rate_increase:.1%} more",
            guardrail=True,
        )
    invalid = report.invalid_blocks
    if invalid >= policy.guardrail_invalid_blocks and invalid > 2 * report.other_invalid_blocks:
        return Decision(
            Outcome.REJECT,
            "Unstable",
            f"{invalid} blocks of the candidate were cut short by engine restarts or failed swaps, "
            f"{report.other_invalid_blocks} of the other arms",
            guardrail=True,
        )
    ours, theirs = report.accept_length, report.stable_accept_length
    if (
        ours is not None
        and theirs is not None
        and min(report.verify_steps, report.stable_verify_steps) >= policy.collapse_verify_steps
        and ours - 1 < policy.collapse_share * (theirs - 1)
    ):
        return Decision(
            Outcome.REJECT,
            "AcceptLengthCollapsed",
            f"the accept length is {ours:.2f} over {report.verify_steps} verify steps, the stable drafter has "
            f"{theirs:.2f}: beyond the bonus token less than {policy.collapse_share:.0%} of it",
            guardrail=True,
        )
    ratio = report.ttft_ratio
    if report.ttft_pairs >= policy.guardrail_pairs and ratio is not None and ratio > policy.max_ttft_ratio:
        return Decision(
            Outcome.REJECT,
            "TimeToFirstToken",
            f"the time to first token is {ratio:.2f} times that of target-only decoding (median of {report.ttft_pairs} "
            f"rounds); allowed is {policy.max_ttft_ratio:.2f}",
            guardrail=True,
        )
    return None


def _standing(name: str, comparison: Comparison, bar: float, policy: GatePolicy) -> str:
    if comparison.pairs == 0:
        return f"against {name}: no pair of blocks yet"
    if comparison.pairs < policy.burn_in_pairs:
        return f"against {name}: {comparison.pairs} of at least {policy.burn_in_pairs} pairs"
    return (
        f"against {name}: {_ratio(comparison.mean)}, surely between {_ratio(comparison.lower)} and "
        f"{_ratio(comparison.upper)} after {comparison.pairs} pairs; the lower bound must pass {bar:.2f}"
    )


def _dropped(report: GateReport) -> str:
    shown = {reason: count for reason, count in report.dropped.items() if reason is not DropReason.DUPLICATE}
    if not shown:
        return ""
    return "; blocks dropped: " + ", ".join(f"{count} {reason.value}" for reason, count in sorted(shown.items()))


def _ratio(log_speedup: float) -> str:
    return f"{math.exp(min(50.0, log_speedup)):.3f}"
