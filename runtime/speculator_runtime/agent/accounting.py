"""From two readings of the engine's counters to a block. Pure: no clock, no engine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from speculator_runtime.contracts.control import BucketCounters, EngineStats
from speculator_runtime.contracts.plan import Block, VersionRef

from .schedule import Slot

_Key = TypeVar("_Key", int, str)


@dataclass(frozen=True)
class Replica:
    """Who measures."""

    pod: str
    pod_uid: str


def measured_block(
    replica: Replica,
    generation: int,
    slot: Slot,
    version: VersionRef | None,
    started: float,
    before: EngineStats,
    after: EngineStats,
) -> Block:
    """The block between two readings; marked invalid when the engine restarted in between.

    `started` in Unix seconds; the block's length is taken from the engine's own monotonic clock.
    """
    if before.epoch != after.epoch:
        return invalid_block(replica, generation, slot, version, started, "the engine restarted during the block")
    try:
        buckets = _difference(before.buckets, after.buckets)
        domains = _difference(before.domains, after.domains)
    except ValueError as error:
        return invalid_block(replica, generation, slot, version, started, str(error))
    finished = after.requests_finished - before.requests_finished
    return Block(
        pod=replica.pod,
        pod_uid=replica.pod_uid,
        generation=generation,
        index=slot.index,
        round=slot.round,
        arm=slot.arm,
        version=version,
        started=started,
        seconds=max(0.0, after.monotonic_seconds - before.monotonic_seconds),
        buckets=buckets,
        domains=domains,
        requests_finished=finished,
        requests_failed=after.requests_failed - before.requests_failed,
        ttft_p50_seconds=quantile(_latest(after.ttft_seconds, finished), 0.5),
        ttft_p99_seconds=quantile(_latest(after.ttft_seconds, finished), 0.99),
        request_tokens_per_second_p50=quantile(_latest(after.request_tokens_per_second, finished), 0.5),
    )


def invalid_block(
    replica: Replica, generation: int, slot: Slot, version: VersionRef | None, started: float, reason: str
) -> Block:
    """A block that counts for nothing, and says why."""
    return Block(
        pod=replica.pod,
        pod_uid=replica.pod_uid,
        generation=generation,
        index=slot.index,
        round=slot.round,
        arm=slot.arm,
        version=version,
        started=started,
        seconds=0.0,
        valid=False,
        invalid_reason=reason,
    )


def quantile(values: list[float], q: float) -> float | None:
    """The smallest value with at least a share q at or below it (nearest rank); None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def _latest(values: list[float], count: int) -> list[float]:
    """The last `count` of a list that is oldest first; the engine keeps a limited number."""
    return values[-count:] if count > 0 else []


def _difference(
    before: Mapping[_Key, BucketCounters], after: Mapping[_Key, BucketCounters]
) -> dict[_Key, BucketCounters]:
    zero = BucketCounters()
    found = {key: counters.minus(before.get(key, zero)) for key, counters in after.items()}
    if not before.keys() <= after.keys():
        raise ValueError("counters disappeared: the engine restarted between the two readings")
    return {key: counters for key, counters in found.items() if counters.steps or counters.tokens}
