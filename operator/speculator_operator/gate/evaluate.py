"""From blocks to a report: paired comparisons with their bounds, guardrail figures, buckets and domains."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from speculator_runtime.contracts.control import BucketCounters
from speculator_runtime.contracts.plan import Arm, Block, VersionRef

from .blocks import RoundKey, Selection, TargetOnlyTimes, round_key, select
from .confidence import asymptotic_bounds, empirical_bernstein_bounds
from .policy import BoundsMethod, GatePolicy
from .types import BucketReport, Comparison, DomainReport, GateReport


def evaluate(
    blocks: Iterable[Block],
    *,
    arm: Arm,
    versions: Mapping[Arm, VersionRef],
    policy: GatePolicy,
    alpha: float,
    latest_pairs: int | None = None,
) -> GateReport:
    """Compare `arm` with target-only and, when it is the candidate and `versions` names a stable one, with stable.

    versions: which version each speculative arm runs; blocks of others are dropped.
    alpha: of each one-sided bound. latest_pairs: only so many of the latest pairs are compared (a moving window).
    Deterministic: the order of the blocks does not matter.
    """
    selection = select(blocks, versions, policy)
    rounds: dict[RoundKey, dict[Arm, float]] = {}
    for scored in selection.scored:
        rounds.setdefault(round_key(scored.block), {})[scored.block.arm] = scored.log_speedup
    ordered = [rounds[key] for key in sorted(rounds)]

    def against(other: Arm) -> Comparison:
        pairs = [found[arm] - found[other] for found in ordered if arm in found and other in found]
        return compare(pairs[-latest_pairs:] if latest_pairs else pairs, policy, alpha)

    with_stable = arm is Arm.CANDIDATE and Arm.STABLE in versions
    tested = [block for block in selection.valid if block.arm is arm]
    others = [block for block in selection.valid if block.arm is not arm]
    used = [scored.block for scored in selection.scored if scored.block.arm is arm]
    stable = [scored.block for scored in selection.scored if scored.block.arm is Arm.STABLE]
    ttft = _ttft_ratios(selection, arm)
    return GateReport(
        against_target_only=against(Arm.TARGET_ONLY),
        against_stable=against(Arm.STABLE) if with_stable else None,
        buckets=_bucket_reports(used, selection.times),
        domains=_domain_reports(used),
        accept_length=_accept_length(_counters(used)),
        verify_steps=_verify_steps(_counters(used)),
        stable_accept_length=_accept_length(_counters(stable)),
        stable_verify_steps=_verify_steps(_counters(stable)),
        blocks=len(selection.scored),
        dropped=selection.dropped,
        dropped_tokens=sum(scored.dropped_tokens for scored in selection.scored),
        requests=sum(block.requests_finished + block.requests_failed for block in tested),
        requests_failed=sum(block.requests_failed for block in tested),
        error_rate_increase=_error_rate_increase(tested, others),
        ttft_ratio=median(ttft) if ttft else None,
        ttft_pairs=len(ttft),
        invalid_blocks=sum(block.arm is arm for block in selection.invalid),
        other_invalid_blocks=sum(block.arm is not arm for block in selection.invalid),
        alpha=alpha,
    )


def compare(differences: Sequence[float], policy: GatePolicy, alpha: float) -> Comparison:
    """Bounds of the mean of log-speedup differences; none before the burn-in."""
    values = np.asarray(differences, dtype=np.float64)
    count = len(values)
    mean = float(np.mean(values)) if count else 0.0
    deviation = float(np.std(values, ddof=1)) if count > 1 else 0.0
    if count < policy.burn_in_pairs:
        return Comparison(count, mean, deviation, -np.inf, np.inf, differences=tuple(differences))
    if policy.method is BoundsMethod.EMPIRICAL_BERNSTEIN:
        bounds = empirical_bernstein_bounds(values, alpha, policy.bound)
    else:
        bounds = asymptotic_bounds(values, alpha, policy.tightest_at_pairs)
    return Comparison(count, mean, deviation, bounds.lower, bounds.upper, bounds.clipped, tuple(differences))


def _counters(blocks: Iterable[Block]) -> list[BucketCounters]:
    return [counters for block in blocks for counters in block.buckets.values()]


def _verify_steps(counters: Iterable[BucketCounters]) -> int:
    return sum(count for one in counters for count in one.accept_histogram.values())


def _accept_length(counters: Sequence[BucketCounters]) -> float | None:
    """Tokens per sequence and verify step, bonus included; None when nothing was verified."""
    steps = _verify_steps(counters)
    tokens = sum(length * count for one in counters for length, count in one.accept_histogram.items())
    return tokens / steps if steps else None


def _bucket_reports(blocks: Sequence[Block], times: TargetOnlyTimes) -> dict[int, BucketReport]:
    by_bucket: dict[int, list[tuple[str, BucketCounters]]] = {}
    for block in blocks:
        for bucket, counters in block.buckets.items():
            by_bucket.setdefault(bucket, []).append((block.pod_uid, counters))
    reports = {}
    for bucket, entries in sorted(by_bucket.items()):
        known = [(times[pod][bucket], c) for pod, c in entries if bucket in times.get(pod, {})]
        taken = sum(c.seconds for _, c in known)
        reports[bucket] = BucketReport(
            steps=sum(c.steps for _, c in entries),
            tokens=sum(c.tokens for _, c in entries),
            speedup=sum(c.tokens * time for time, c in known) / taken if taken > 0 else None,
            accept_length=_accept_length([c for _, c in entries]),
        )
    return reports


def _domain_reports(blocks: Sequence[Block]) -> dict[str, DomainReport]:
    by_domain: dict[str, list[BucketCounters]] = {}
    for block in blocks:
        for domain, counters in block.domains.items():
            by_domain.setdefault(domain, []).append(counters)
    return {
        domain: DomainReport(tokens=sum(c.tokens for c in entries), accept_length=_accept_length(entries))
        for domain, entries in sorted(by_domain.items())
    }


def _error_rate_increase(tested: Sequence[Block], others: Sequence[Block]) -> float | None:
    rates = []
    for blocks in (tested, others):
        failed = sum(block.requests_failed for block in blocks)
        requests = failed + sum(block.requests_finished for block in blocks)
        if not requests:
            return None
        rates.append(failed / requests)
    return rates[0] - rates[1]


def _ttft_ratios(selection: Selection, arm: Arm) -> list[float]:
    """Per round, median TTFT of `arm` divided by that of target-only."""
    rounds: dict[RoundKey, dict[Arm, float]] = {}
    for scored in selection.scored:
        ttft = scored.block.ttft_p50_seconds
        if ttft is not None and 0 < ttft < float("inf"):
            rounds.setdefault(round_key(scored.block), {})[scored.block.arm] = ttft
    return [
        found[arm] / found[Arm.TARGET_ONLY] for found in rounds.values() if arm in found and Arm.TARGET_ONLY in found
    ]
