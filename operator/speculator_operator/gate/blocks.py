"""Blocks as evidence: which count, what they say of speedup, and their digest.

A block's speedup is the time target-only decoding would have taken for its tokens, divided by the time it took. The
first comes from the target-only blocks of the same pod and run: seconds per token at each batch bucket. Target-only
blocks are scored in the same way, so that a drift of the machine that both blocks of a round share cancels.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speculator_runtime.contracts.plan import Arm, Block, VersionRef
from speculator_runtime.contracts.settings import canonical_json

from .policy import GatePolicy
from .types import DropReason

FIT_SWEEPS = 50
FIT_TOLERANCE = 1e-9
"""Of the fit of target-only times: relative change at which it has settled."""

CLOCK_GRAIN = 1e-9
"""Seconds; a bucket that took less was not measured."""

RoundKey = tuple[int, int, str]
"""(generation, round, pod uid): what is compared with each other, in the order pairs are counted."""

TargetOnlyTimes = Mapping[str, Mapping[int, float]]
"""Pod uid -> batch bucket -> seconds per token."""


@dataclass(frozen=True)
class Scored:
    """A block that counts."""

    block: Block
    log_speedup: float
    """Against target-only of the same run; of a target-only block: how far it is from the run's average."""
    dropped_tokens: int
    """In buckets without a target-only time."""


@dataclass(frozen=True)
class Selection:
    """What is left of the evidence, in order, and what was dropped."""

    scored: Sequence[Scored]
    valid: Sequence[Block]
    """Blocks of the right versions that are not invalid, too short ones included: requests are counted on these."""
    invalid: Sequence[Block]
    times: TargetOnlyTimes
    dropped: Mapping[DropReason, int]


def block_key(block: Block) -> tuple[str, int, int]:
    """Identity and order of a block."""
    return (block.pod_uid, block.generation, block.index)


def evidence_sha256(blocks: Iterable[Block]) -> str:
    """Digest of evidence, whatever the order it came in; the same block twice counts once."""
    digest = hashlib.sha256()
    lines = {(block_key(block), canonical_json(block)) for block in blocks}
    for _, line in sorted(lines):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def select(blocks: Iterable[Block], versions: Mapping[Arm, VersionRef], policy: GatePolicy) -> Selection:
    """Score the blocks of the arms in `versions` and of target-only; every block not used is counted by reason."""
    dropped: Counter[DropReason] = Counter()
    valid: list[Block] = []
    invalid: list[Block] = []
    for block in _distinct(blocks, dropped):
        if block.arm is not Arm.TARGET_ONLY and (block.version is None or block.version != versions.get(block.arm)):
            dropped[DropReason.OTHER_VERSION] += 1
        elif not block.valid:
            dropped[DropReason.INVALID] += 1
            invalid.append(block)
        elif not _possible(block):
            dropped[DropReason.IMPOSSIBLE_NUMBERS] += 1
        else:
            valid.append(block)

    measured = []
    for block in valid:
        if sum(counters.steps for counters in block.buckets.values()) < policy.min_block_steps:
            dropped[DropReason.TOO_FEW_STEPS] += 1
        else:
            measured.append(block)
    times = target_only_times(measured, policy.min_bucket_steps)
    scored: list[Scored] = []
    seen: set[tuple[RoundKey, Arm]] = set()
    for block in measured:
        result = score(block, times, policy.min_coverage)
        if isinstance(result, DropReason):
            dropped[result] += 1
        elif (round_key(block), block.arm) in seen:
            dropped[DropReason.REPEATED_ARM] += 1
        else:
            seen.add((round_key(block), block.arm))
            scored.append(result)
    return Selection(scored, valid, invalid, times, dict(dropped))


def round_key(block: Block) -> RoundKey:
    """The round a block belongs to."""
    return (block.generation, block.round, block.pod_uid)


def target_only_times(blocks: Iterable[Block], min_steps: int) -> TargetOnlyTimes:
    """Seconds per token at each bucket, from target-only blocks; buckets with fewer steps are left out.

    At steady load this is the sum of seconds divided by the sum of tokens, and with buckets that hold exactly b
    sequences T0(b) / b, T0 being the seconds of a target-only step.
    """
    by_pod: dict[str, list[Block]] = {}
    for block in blocks:
        if block.arm is Arm.TARGET_ONLY:
            by_pod.setdefault(block.pod_uid, []).append(block)
    return {pod: _times_of_pod(found, min_steps) for pod, found in by_pod.items()}


def _times_of_pod(blocks: Sequence[Block], min_steps: int) -> dict[int, float]:
    steps: Counter[int] = Counter()
    tokens_seen: Counter[int] = Counter()
    for block in blocks:
        for bucket, counters in block.buckets.items():
            if counters.seconds > 0:
                steps[bucket] += counters.steps
                tokens_seen[bucket] += counters.tokens
    buckets = [bucket for bucket in sorted(steps) if steps[bucket] >= min_steps and tokens_seen[bucket] > 0]
    if not buckets:
        return {}
    seconds = np.zeros((len(blocks), len(buckets)))
    tokens = np.zeros_like(seconds)
    for row, block in enumerate(blocks):
        for column, bucket in enumerate(buckets):
            if bucket in block.buckets:
                seconds[row, column] = block.buckets[bucket].seconds
                tokens[row, column] = block.buckets[bucket].tokens
    return dict(zip(buckets, fit_times(seconds, tokens).tolist(), strict=True))


def fit_times(seconds: NDArray[np.float64], tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds per token [buckets] from target-only blocks [blocks, buckets], each block's load factored out.

    Plain sums would take a machine that is slow whenever batches are large for one on which large batches are slow,
    and a drafter that merely shifts the batch mix would look faster (in the simulation: up to 45% false promotions
    instead of 5%). So seconds are modelled as tokens x time of the bucket x load of the block and fitted by alternating
    the two (the Poisson maximum-likelihood fit of a two-way multiplicative table). Scaled so that over all these
    blocks target-only takes the seconds it took.
    """
    used = tokens.sum(axis=1) > 0
    seconds, tokens = seconds[used], tokens[used]
    times: NDArray[np.float64] = seconds.sum(axis=0) / tokens.sum(axis=0)
    for _ in range(FIT_SWEEPS):
        load = seconds.sum(axis=1) / (tokens @ times)
        fitted = seconds.sum(axis=0) / (load @ tokens)
        settled = bool(np.all(np.abs(fitted - times) <= FIT_TOLERANCE * times))
        times = fitted
        if settled:
            break
    return np.asarray(times * (seconds.sum() / float((tokens @ times).sum())))


def score(block: Block, times: TargetOnlyTimes, min_coverage: float) -> Scored | DropReason:
    """Log speedup of one block; buckets without a target-only time are left out of both times."""
    pod = times.get(block.pod_uid, {})
    equivalent = taken = 0.0
    tokens = left_out = 0
    for bucket, counters in block.buckets.items():
        tokens += counters.tokens
        if bucket in pod:
            equivalent += counters.tokens * pod[bucket]
            taken += counters.seconds
        else:
            left_out += counters.tokens
    if tokens == left_out:
        return DropReason.NO_TARGET_ONLY_TIME
    if tokens - left_out < min_coverage * tokens:
        return DropReason.UNCOVERED_BUCKETS
    if taken <= 0:
        return DropReason.NO_TIME
    ratio = equivalent / taken
    if not 0 < ratio < math.inf:
        return DropReason.IMPOSSIBLE_NUMBERS
    return Scored(block, math.log(ratio), left_out)


def _distinct(blocks: Iterable[Block], dropped: Counter[DropReason]) -> list[Block]:
    """Blocks in order of (pod uid, generation, index), each once; two different ones of one identity both go."""
    by_key: dict[tuple[str, int, int], Block] = {}
    conflicts: set[tuple[str, int, int]] = set()
    for block in blocks:
        key = block_key(block)
        known = by_key.get(key)
        if known is None:
            by_key[key] = block
        elif canonical_json(known) == canonical_json(block):
            dropped[DropReason.DUPLICATE] += 1
        else:
            conflicts.add(key)
            dropped[DropReason.CONFLICTING] += 1
    for key in conflicts:
        del by_key[key]
        dropped[DropReason.CONFLICTING] += 1
    return [by_key[key] for key in sorted(by_key)]


def _possible(block: Block) -> bool:
    """Finite numbers, none negative, and no time too short for a clock."""
    return all(
        (counters.seconds == 0 or CLOCK_GRAIN <= counters.seconds < math.inf)
        and counters.tokens >= 0
        and counters.steps >= 0
        for counters in block.buckets.values()
    )
