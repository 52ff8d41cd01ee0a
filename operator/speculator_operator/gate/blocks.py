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

from speculator_runtime.contracts.plan import Arm, Block, VersionRef
from speculator_runtime.contracts.settings import canonical_json

from .policy import GatePolicy
from .types import DropReason

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

    With buckets that hold exactly b sequences this is T0(b) / b, T0 being the seconds of a target-only step.
    """
    sums: dict[str, dict[int, list[float]]] = {}
    for block in blocks:
        if block.arm is Arm.TARGET_ONLY:
            pod = sums.setdefault(block.pod_uid, {})
            for bucket, counters in block.buckets.items():
                entry = pod.setdefault(bucket, [0.0, 0.0, 0.0])
                entry[0] += counters.seconds
                entry[1] += counters.tokens
                entry[2] += counters.steps
    return {
        pod: {
            bucket: seconds / tokens
            for bucket, (seconds, tokens, steps) in sorted(buckets.items())
            if steps >= min_steps and tokens > 0 and seconds > 0
        }
        for pod, buckets in sums.items()
    }


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
    return Scored(block, math.log(equivalent / taken), left_out)


def _distinct(blocks: Iterable[Block], dropped: Counter[DropReason]) -> list[Block]:
    """Blocks in order of (pod uid, generation, index), each once; two different ones of one identity both go."""
    by_key: dict[tuple[str, int, int], Block] = {}
    conflicts: set[tuple[str, int, int]] = set()
    for block in blocks:
        key = block_key(block)
        known = by_key.setdefault(key, block)
        if known is block:
            continue
        if canonical_json(known) == canonical_json(block):
            dropped[DropReason.DUPLICATE] += 1
        else:
            conflicts.add(key)
            dropped[DropReason.CONFLICTING] += 1
    for key in conflicts:
        del by_key[key]
        dropped[DropReason.CONFLICTING] += 1
    return [by_key[key] for key in sorted(by_key)]


def _possible(block: Block) -> bool:
    """Finite numbers, none negative."""
    return all(
        math.isfinite(counters.seconds) and counters.seconds >= 0 and counters.tokens >= 0 and counters.steps >= 0
        for counters in block.buckets.values()
    )
