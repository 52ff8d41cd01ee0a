"""The ledger seen from the operator, on a real S3 server: cached, finite, with problems as values."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from speculator_operator.kube.client import NotLeaderError
from speculator_operator.kube.ledger import LedgerSession, S3Credentials
from speculator_operator.reconcile.observed import Problem
from speculator_runtime.contracts.ledger import Verdict, VerdictRecord
from speculator_runtime.contracts.plan import VersionRef
from speculator_runtime.contracts.settings import StoreSettings
from speculator_runtime.storage import Ledger
from support.s3server import ACCESS_KEY, SECRET_KEY, S3Server, free_port
from support.samples import make_block, make_manifest, write_version

GOOD = S3Credentials(ACCESS_KEY, SECRET_KEY)


def session(store: StoreSettings, credentials: S3Credentials | None = GOOD, **options) -> LedgerSession:
    return LedgerSession(store, credentials, ThreadPoolExecutor(2), lambda: 10.0, poll_seconds=0.0, **options)


def publish(store: StoreSettings, directory: Path, count: int = 1) -> list[VersionRef]:
    ledger, refs, parent = Ledger(store), [], None
    for _ in range(count):
        number = ledger.claim_version("test")
        files = write_version(directory / str(number), f"weights {number}".encode())
        parent = ledger.publish(number, directory / str(number), make_manifest(number, files, parent))
        refs.append(parent.ref)
    return refs


def verdict(ref: VersionRef, sequence: int = 1, kind: Verdict = Verdict.PROMOTED) -> VerdictRecord:
    return VerdictRecord(
        sequence=sequence,
        version=ref,
        verdict=kind,
        reason="Faster",
        message="it is",
        decided_by="gate",
        at=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def test_published_versions_are_seen_with_the_digest_of_their_manifest(store, tmp_path) -> None:
    refs = publish(store, tmp_path, 2)
    view = await session(store).look([])
    assert view.read
    assert [entry.manifest.version for entry in view.versions] == [ref.version for ref in refs]
    assert view.versions[1].manifest.parent_manifest_sha256 == view.versions[0].manifest_sha256


async def test_a_version_that_comes_later_is_seen_later(store, tmp_path) -> None:
    ledger = session(store)
    assert (await ledger.look([])).versions == ()
    publish(store, tmp_path)
    assert len((await ledger.look([])).versions) == 1


async def test_a_claimed_number_without_manifest_is_not_a_version(store) -> None:
    Ledger(store).claim_version("somebody")
    assert (await session(store).look([])).versions == ()


async def test_a_manifest_that_cannot_be_read_is_named_and_hides_no_other(store, tmp_path, s3_server: S3Server) -> None:
    publish(store, tmp_path)
    Ledger(store).claim_version("broken")
    s3_server.client().put_object(Bucket=store.bucket, Key="ns/name/versions/000002/manifest.json", Body=b"{")
    publish(store, tmp_path / "third")
    view = await session(store).look([])
    assert [entry.manifest.version for entry in view.versions] == [1, 3]
    assert list(view.unreadable) == [2]


async def test_blocks_count_once_they_are_stored_and_only_once(store, tmp_path) -> None:
    (ref,) = publish(store, tmp_path)
    ledger = session(store)
    blocks = [make_block(index) for index in range(4)]
    assert await ledger.store_blocks(1, blocks[:3]) == 3
    assert await ledger.store_blocks(1, blocks) == 1
    view = await ledger.look([ref.version])
    assert list(view.evidence) == blocks


async def test_a_new_leader_reads_evidence_and_verdicts_of_the_old_one(store, tmp_path) -> None:
    (ref,) = publish(store, tmp_path)
    old = session(store)
    await old.store_blocks(1, [make_block(index) for index in range(3)])
    assert await old.record(verdict(ref)) is None
    view = await session(store).look([1])
    assert len(view.evidence) == 3
    assert [record.verdict for record in view.history] == [Verdict.PROMOTED]


async def test_two_writers_of_one_verdict_number_end_with_the_first_ones(store, tmp_path) -> None:
    (ref,) = publish(store, tmp_path)
    one, two = session(store), session(store)
    await two.look([])
    assert await one.record(verdict(ref)) is None
    taken = await two.record(verdict(ref, kind=Verdict.REJECTED))
    assert taken is not None
    assert taken.reason == "VerdictTaken"
    assert (await two.look([])).problem is None, "the ledger is well; the other verdict is adopted in the next pass"
    assert [record.verdict for record in (await two.look([])).history] == [Verdict.PROMOTED]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bucket": "no-such-bucket"}, "BucketNotFound"),
        ({"endpoint": "ftp:nowhere"}, "StoreMisconfigured"),
    ],
)
async def test_what_is_wrong_with_the_store_is_a_problem(store, change, reason) -> None:
    view = await session(store.model_copy(update=change)).look([])
    assert view.problem is not None
    assert view.problem.reason == reason
    assert not view.read


async def test_wrong_credentials_are_a_problem_that_names_the_secret(store) -> None:
    view = await session(store, S3Credentials(ACCESS_KEY, "wrong")).look([])
    assert view.problem is not None
    assert view.problem.reason == "CredentialsRefused"


async def test_a_store_that_does_not_listen_is_given_up_within_seconds(store) -> None:
    began = time.monotonic()
    view = await session(store.model_copy(update={"endpoint": f"http://127.0.0.1:{free_port()}"})).look([])
    assert view.problem is not None
    assert view.problem.reason == "StoreUnreachable"
    assert time.monotonic() - began < 8


async def test_an_outage_keeps_what_was_known_and_ends_by_itself(private_s3_server: S3Server, tmp_path) -> None:
    store = private_s3_server.settings(private_s3_server.new_bucket())
    publish(store, tmp_path)
    ledger = session(store)
    await ledger.look([])
    private_s3_server.stop()
    during = await ledger.look([])
    assert during.problem is not None
    assert [entry.manifest.version for entry in during.versions] == [1]
    assert isinstance(await ledger.store_blocks(1, [make_block(0)]), Problem)
    private_s3_server.start()
    after = await ledger.look([1])
    assert after.problem is None
    assert after.evidence == (), "a block that was not stored does not count"


async def test_nothing_is_written_by_a_former_leader(store, tmp_path) -> None:
    (ref,) = publish(store, tmp_path)

    def lost() -> float:
        raise NotLeaderError("lost")

    ledger = LedgerSession(store, GOOD, ThreadPoolExecutor(1), lost)
    with pytest.raises(NotLeaderError):
        await ledger.store_blocks(1, [make_block(0)])
    with pytest.raises(NotLeaderError):
        await ledger.record(verdict(ref))
    assert Ledger(store).read_evidence(1) == []
