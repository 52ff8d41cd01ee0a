"""Rows from the ledger, and what a promotion is waited for as."""

from datetime import UTC, datetime

import pytest

from speculator_operator.cli.errors import CliError
from speculator_operator.cli.history import history_lines, ledger_rows
from speculator_operator.cli.waiting import Promotion
from speculator_runtime.contracts.ledger import FileEntry, Verdict, VerdictRecord
from speculator_runtime.contracts.plan import VersionRef
from speculator_runtime.storage.chain import StoredManifest
from support.samples import make_manifest


def stored(number: int, policy: str = "b" * 64) -> StoredManifest:
    manifest = make_manifest(number, {"model.safetensors": FileEntry(sha256=f"{number:064x}", size=9)})
    return StoredManifest(manifest.model_copy(update={"training_policy_sha256": policy}), "c" * 64)


def verdict(sequence: int, number: int, kind: Verdict, by: str = "gate") -> VerdictRecord:
    return VerdictRecord(
        sequence=sequence,
        version=VersionRef(version=number, sha256=f"{number:064x}"),
        verdict=kind,
        reason="Because",
        message="",
        decided_by=by,
        at=datetime(2026, 12, 1, tzinfo=UTC),
    )


def test_every_decision_has_its_row_in_order_and_undecided_versions_come_last():
    verdicts = [
        verdict(3, 1, Verdict.PROMOTED, "rollback.ann.1"),
        verdict(1, 1, Verdict.PROMOTED),
        verdict(2, 2, Verdict.PROMOTED),
    ]
    rows, problems = ledger_rows("chat", "s3://b/p", [stored(1), stored(2), stored(3)], verdicts)
    assert not problems
    shown = [line.plain.split() for line in history_lines(rows)][1:]
    assert [row[0] for row in shown] == ["1", "2", "1", "3"]
    assert "rollback.ann.1" in shown[2]


def test_a_manifest_that_the_cluster_would_refuse_still_has_its_row_and_is_reported():
    rows, problems = ledger_rows("chat", "s3://b/p", [stored(1, policy="not a digest")], [])
    assert rows[0]["spec"] == {"version": 1, "sha256": f"{1:064x}"}
    assert problems[0].startswith("manifest of version 1:")


def status(stable: int | None, candidate: int | None) -> dict:
    refs = {"stable": stable, "candidate": candidate}
    return {"status": {role: {"version": number} for role, number in refs.items() if number is not None}}


def test_with_no_candidate_the_next_stable_version_is_the_promotion():
    goal = Promotion()
    assert [goal.reached(obj) for obj in (status(1, None), status(1, 2), status(2, None))] == [
        "",
        "",
        "version 2 is promoted",
    ]


def test_another_version_made_stable_is_not_the_candidates_promotion():
    goal = Promotion()
    goal.reached(status(2, 3))
    with pytest.raises(CliError, match="Version 3 was not promoted: version 1 was made stable instead"):
        goal.reached(status(1, None))


def test_a_version_that_is_stable_already_is_not_a_promotion():
    assert Promotion().reached(status(2, None)) == ""
