"""The sample buffer: bounded in bytes, shared fairly between domains, bounded in staleness. Thread-safe.

Never blocks a writer: when it is full, something old goes, and the loss is counted by its reason.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from speculator_runtime.contracts.settings import TrainingConfig

from .sample import Sample

FULL = "BufferFull"
TOO_LARGE = "TooLarge"
STALE_DRAFT = "DraftVersionsBehind"
STALE_AGE = "TooOld"
OTHER_TARGET = "OtherTarget"
OPTED_OUT = "OptedOut"


@dataclass(frozen=True)
class Occupancy:
    """What the buffer holds."""

    samples: int
    bytes: int
    high_water_bytes: int
    fresh: int
    domains: dict[str, int]


class _Domain:
    """Samples of one domain, oldest first."""

    def __init__(self) -> None:
        self.samples: OrderedDict[int, Sample] = OrderedDict()
        self.bytes = 0


class SampleBuffer:
    """Samples that may be trained on. A sample is fresh until it was drawn once."""

    def __init__(self, training: TrainingConfig) -> None:
        self._limit = training.buffer_bytes
        self._quota = training.buffer_domain_quota * training.buffer_bytes
        self._max_behind = training.max_draft_versions_behind
        self._max_age = training.max_age_seconds
        self._lock = threading.Lock()
        self._domains: dict[str, _Domain] = {}
        self._fresh: deque[tuple[str, int]] = deque()
        self._next = 0
        self._bytes = 0
        self._high_water = 0
        self.dropped: Counter[str] = Counter()

    def add(self, sample: Sample) -> None:
        """Take a sample in; what has to go for it is counted under BufferFull."""
        with self._lock:
            if sample.nbytes > self._limit:
                self.dropped[TOO_LARGE] += 1
                return
            domain = self._domains.setdefault(sample.header.domain, _Domain())
            key, self._next = self._next, self._next + 1
            domain.samples[key] = sample
            domain.bytes += sample.nbytes
            self._bytes += sample.nbytes
            self._fresh.append((sample.header.domain, key))
            while self._bytes > self._limit:
                self._evict_for_room()
            self._high_water = max(self._high_water, self._bytes)

    def prune(self, now: float, published: int, target_digest: str | None) -> None:
        """Drop what is too old (`now`: Unix seconds), too many versions behind `published`, or of another target."""
        with self._lock:
            for name, key, sample in list(self._all()):
                reason = self._stale(sample, now, published, target_digest)
                if reason is not None:
                    self._remove(name, key, reason)

    def draw(self, count: int, max_fresh: int | None, generator: torch.Generator) -> list[Sample]:
        """Up to `count` distinct samples: the oldest fresh ones first, at most `max_fresh`; the rest replay at random.

        Fewer replay samples than wanted are made up for by fresh ones only within `max_fresh`, unless nothing was ever
        replayed: then a batch may be all fresh, so that the first steps are not starved.
        """
        with self._lock:
            replay = [(name, key) for name, key, sample in self._all() if sample.uses]
            limit = count if max_fresh is None or not replay else max_fresh
            chosen = self._take_fresh(min(count, limit))
            wanted = min(count - len(chosen), len(replay))
            order = torch.randperm(len(replay), generator=generator)[:wanted].tolist() if wanted else []
            chosen += [self._domains[replay[i][0]].samples[replay[i][1]] for i in order]
            for sample in chosen:
                sample.uses += 1
            return chosen

    def occupancy(self) -> Occupancy:
        """What is held now, and the most bytes ever held."""
        with self._lock:
            return Occupancy(
                samples=sum(len(d.samples) for d in self._domains.values()),
                bytes=self._bytes,
                high_water_bytes=self._high_water,
                fresh=sum(1 for _, _, sample in self._all() if not sample.uses),
                domains={name: len(d.samples) for name, d in sorted(self._domains.items()) if d.samples},
            )

    def _take_fresh(self, count: int) -> list[Sample]:
        taken: list[Sample] = []
        while self._fresh and len(taken) < count:
            name, key = self._fresh.popleft()
            sample = self._domains[name].samples.get(key) if name in self._domains else None
            if sample is not None:
                taken.append(sample)
        return taken

    def _evict_for_room(self) -> None:
        """The oldest sample of the domain furthest above its quota; of the oldest of all where none is above.

        A burst so grows to its quota and from then on displaces only itself, while a lone domain may fill everything.
        """
        held = {name: domain for name, domain in self._domains.items() if domain.samples}
        name = max(held, key=lambda n: held[n].bytes)
        if held[name].bytes <= self._quota or len(held) == 1:
            name = min(held, key=lambda n: next(iter(held[n].samples)))
        self._remove(name, next(iter(held[name].samples)), FULL)

    def _remove(self, name: str, key: int, reason: str) -> None:
        domain = self._domains[name]
        sample = domain.samples.pop(key)
        domain.bytes -= sample.nbytes
        self._bytes -= sample.nbytes
        self.dropped[reason] += 1
        if not domain.samples:
            del self._domains[name]

    def _stale(self, sample: Sample, now: float, published: int, target_digest: str | None) -> str | None:
        header = sample.header
        if target_digest is not None and header.target_digest != target_digest:
            return OTHER_TARGET
        if self._max_age is not None and now - header.finished > self._max_age:
            return STALE_AGE
        if self._max_behind is not None and published - header.draft_version > self._max_behind:
            return STALE_DRAFT
        return None

    def _all(self) -> Iterator[tuple[str, int, Sample]]:
        for name, domain in self._domains.items():
            for key, sample in domain.samples.items():
                yield name, key, sample
