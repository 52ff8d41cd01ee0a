"""What served when, from verdicts alone."""

from datetime import UTC, datetime, timedelta

import pytest

from speculator_operator.cli.series import series
from speculator_runtime.contracts.control import BucketCounters
from speculator_runtime.contracts.ledger import Verdict, VerdictRecord
from speculator_runtime.contracts.plan import VersionRef
from support.samples import make_block

START = datetime(2026, 12, 1, tzinfo=UTC)


def record(sequence: int, version: int, verdict: Verdict) -> VerdictRecord:
    return VerdictRecord(
        sequence=sequence,
        version=VersionRef(version=version, sha256="a" * 64),
        verdict=verdict,
        reason="R",
        message="",
        decided_by="gate",
        at=START + timedelta(hours=sequence),
    )


def test_promotions_fallbacks_and_recoveries_change_what_serves_rejections_do_not():
    verdicts = [
        record(1, 1, Verdict.PROMOTED),
        record(2, 2, Verdict.REJECTED),
        record(3, 1, Verdict.FALLBACK),
        record(4, 1, Verdict.RECOVERED),
        record(5, 3, Verdict.PROMOTED),
        record(6, 4, Verdict.ABORTED),
    ]
    spans = series(verdicts, [], [START]).spans
    served = [(span.start.hour, span.end.hour, span.version, span.target_only) for span in spans]
    assert served == [(0, 1, None, True), (1, 3, 1, False), (3, 4, 1, True), (4, 5, 1, False), (5, 6, 3, False)]


def test_only_valid_blocks_with_a_drafter_have_an_accept_length():
    counters = BucketCounters(steps=10, sequences=10, tokens=25, seconds=1.0, accept_histogram={1: 2, 3: 6})
    target_only, drafted = (make_block(i).model_copy(update={"buckets": {1: counters}}) for i in (0, 1))
    invalid = make_block(3).model_copy(update={"buckets": {1: counters}, "valid": False})
    accepts = series([], [target_only, drafted, invalid], []).accepts
    assert [(point.version, point.accept_length) for point in accepts] == [(1, pytest.approx(2.5))]


def test_an_empty_ledger_has_nothing_to_show():
    assert series([], [], []).spans == ()
