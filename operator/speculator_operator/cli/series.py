"""What a plot of a lineage shows, from the ledger's verdicts and blocks: points and spans. Pure, no drawing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from speculator_runtime.contracts.ledger import Interval, Verdict, VerdictRecord
from speculator_runtime.contracts.plan import Arm, Block


@dataclass(frozen=True)
class AcceptPoint:
    """One block of a drafter. accept_length: tokens per sequence and verify step, bonus included."""

    at: datetime
    arm: Arm
    version: int
    accept_length: float


@dataclass(frozen=True)
class Decided:
    """One verdict with the speedup over target-only decoding that it rests on, if it rests on any."""

    at: datetime
    version: int
    verdict: Verdict
    speedup: Interval | None


@dataclass(frozen=True)
class Span:
    """What served at rest from one decision to the next. version None: no version was promoted yet."""

    start: datetime
    end: datetime
    version: int | None
    target_only: bool


@dataclass(frozen=True)
class Series:
    """Everything on one time axis."""

    accepts: tuple[AcceptPoint, ...]
    decided: tuple[Decided, ...]
    spans: tuple[Span, ...]


def series(verdicts: Iterable[VerdictRecord], blocks: Iterable[Block], published: Sequence[datetime]) -> Series:
    """From a whole ledger. published: when each version was made; the axis begins with the first of all times."""
    ordered = sorted(verdicts, key=lambda record: record.sequence)
    accepts = tuple(sorted((p for b in blocks if (p := _accept(b)) is not None), key=lambda point: point.at))
    decided = tuple(Decided(r.at, r.version.version, r.verdict, r.against_target_only) for r in ordered)
    times = [*published, *(point.at for point in accepts), *(entry.at for entry in decided)]
    return Series(accepts, decided, _spans(decided, min(times), max(times)) if times else ())


def _accept(block: Block) -> AcceptPoint | None:
    counted = [counters.accept_histogram for counters in block.buckets.values()]
    steps = sum(count for histogram in counted for count in histogram.values())
    if not block.valid or block.version is None or steps == 0:
        return None
    tokens = sum(length * count for histogram in counted for length, count in histogram.items())
    at = datetime.fromtimestamp(block.started, UTC)
    return AcceptPoint(at, block.arm, block.version.version, tokens / steps)


def _spans(decided: Sequence[Decided], first: datetime, last: datetime) -> tuple[Span, ...]:
    spans = []
    start, version, target_only = first, None, True
    for entry in decided:
        after: tuple[int | None, bool] = (version, target_only)
        if entry.verdict is Verdict.PROMOTED:
            after = (entry.version, False)
        elif entry.verdict in {Verdict.FALLBACK, Verdict.RECOVERED}:
            after = (version, entry.verdict is Verdict.FALLBACK)
        if after != (version, target_only):
            spans.append(Span(start, entry.at, version, target_only))
            start, (version, target_only) = entry.at, after
    spans.append(Span(start, last, version, target_only))
    return tuple(span for span in spans if span.end > span.start)
