"""Counters of the engine: decode steps by batch bucket and by domain, requests, prefill. Thread-safe.

Only decode steps count as steps: drafting, verifying, the drafter's catch-up and our own work around them. Prefill is
timed apart, so that prompts that come in during a block do not look like slow decoding.
"""

import threading
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass, field

from speculator_runtime.contracts.control import BucketCounters, EngineStats

_RECENT = 256


@dataclass
class _Counts:
    steps: int = 0
    sequences: int = 0
    tokens: int = 0
    seconds: float = 0.0
    histogram: Counter[int] = field(default_factory=Counter)

    def freeze(self) -> BucketCounters:
        return BucketCounters(
            steps=self.steps,
            sequences=self.sequences,
            tokens=self.tokens,
            seconds=self.seconds,
            accept_histogram=dict(sorted(self.histogram.items())),
        )


@dataclass(frozen=True)
class Prefill:
    """Prompt rows computed and the seconds they took."""

    rows: int = 0
    seconds: float = 0.0


class Statistics:
    """Written by the engine's thread, read by HTTP's."""

    def __init__(self, buckets: tuple[int, ...], max_sequences: int) -> None:
        self.epoch = uuid.uuid4().hex
        self._bounds = sorted(buckets)
        if self._bounds[-1] < max_sequences:
            self._bounds.append(max_sequences)
        self._lock = threading.Lock()
        self._buckets: dict[int, _Counts] = {}
        self._domains: dict[str, _Counts] = {}
        self._finished = 0
        self._failed = 0
        self._ttft: deque[float] = deque(maxlen=_RECENT)
        self._throughput: deque[float] = deque(maxlen=_RECENT)
        self.prefill = Prefill()
        self.drafting_faults = 0
        self.traces_lost = 0
        self.swaps = 0

    def bucket(self, sequences: int) -> int:
        """The bucket of a step: the smallest bound that holds so many sequences."""
        return next(bound for bound in self._bounds if sequences <= bound)

    def record_step(self, committed: list[int], domains: list[str], seconds: float, verified: bool) -> None:
        """One decode step that committed so many tokens for each sequence; `verified`: with a draft tree.

        A target-only step is no verify step and leaves the accept histogram alone.
        """
        with self._lock:
            counts = self._buckets.setdefault(self.bucket(len(committed)), _Counts())
            counts.steps += 1
            counts.sequences += len(committed)
            counts.tokens += sum(committed)
            counts.seconds += seconds
            for domain in set(domains):
                self._domains.setdefault(domain, _Counts()).steps += 1
            for tokens, domain in zip(committed, domains, strict=True):
                of_domain = self._domains[domain]
                of_domain.sequences += 1
                of_domain.tokens += tokens
                if verified:
                    counts.histogram[tokens] += 1
                    of_domain.histogram[tokens] += 1

    def record_prefill(self, rows: int, seconds: float) -> None:
        """Prompt rows computed."""
        self.prefill = Prefill(self.prefill.rows + rows, self.prefill.seconds + seconds)

    def record_finished(self, ttft: float, tokens_in_and_out: int, seconds: float) -> None:
        """A request that ended well. Throughput as in the Aurora paper: (T_in + T_out) / t_request."""
        with self._lock:
            self._finished += 1
            self._ttft.append(ttft)
            self._throughput.append(tokens_in_and_out / max(seconds, 1e-9))

    def record_failed(self) -> None:
        """A request that ended with an error of ours (not one the client cancelled)."""
        with self._lock:
            self._failed += 1

    def snapshot(self, traces_captured: int, traces_dropped: int) -> EngineStats:
        """A consistent reading; traces that could not even be made count as dropped."""
        with self._lock:
            return EngineStats(
                epoch=self.epoch,
                monotonic_seconds=time.monotonic(),
                buckets={bound: counts.freeze() for bound, counts in sorted(self._buckets.items())},
                requests_finished=self._finished,
                requests_failed=self._failed,
                ttft_seconds=list(self._ttft),
                request_tokens_per_second=list(self._throughput),
                domains={name: counts.freeze() for name, counts in sorted(self._domains.items())},
                traces_captured=traces_captured,
                traces_dropped=traces_dropped + self.traces_lost,
            )
