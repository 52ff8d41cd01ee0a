"""Versions on a replica's disk, from a real S3 server."""

import asyncio
import time
from pathlib import Path

import pytest

from speculator_runtime.agent.clock import SystemClock
from speculator_runtime.agent.journal import Journal
from speculator_runtime.agent.versions import VersionStore
from speculator_runtime.contracts.plan import LoadStatus, VersionRef
from speculator_runtime.storage import Ledger
from support.samples import make_manifest, write_version


def publish(store, tmp_path: Path, content: bytes) -> VersionRef:
    ledger = Ledger(store)
    version = ledger.claim_version()
    files = write_version(tmp_path / f"out-{version}", content)
    return ledger.publish(version, tmp_path / f"out-{version}", make_manifest(version, files)).ref


async def eventually(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.02)


@pytest.fixture
async def open_versions(tmp_path):
    """Opens the same replica's versions again and again, as an agent that restarts."""
    opened = []

    def open_one(store, keep=2, clock=None) -> VersionStore:
        work = tmp_path / "work"
        made = VersionStore(work / "versions", Ledger(store), Journal(work, "uid"), clock or SystemClock(), keep)
        opened.append(made)
        return made

    yield open_one
    for versions in opened:
        await versions.close()


class Impatient(SystemClock):
    """Waits a hundredth of what is asked, and remembers what was asked."""

    def __init__(self):
        self.asked = []

    async def wait(self, event, seconds):
        self.asked.append(seconds)
        return await super().wait(event, seconds / 100)


async def test_a_wanted_version_is_fetched_in_the_background_and_verified(store, tmp_path, open_versions):
    ref = publish(store, tmp_path, b"weights")
    versions = open_versions(store)
    versions.want([ref])
    assert versions.state(ref).status is LoadStatus.PENDING
    assert versions.directory(ref) is None

    await eventually(lambda: versions.state(ref).status is LoadStatus.FETCHED)

    directory = versions.directory(ref)
    assert directory is not None
    assert (directory / "model.safetensors").read_bytes() == b"weights"
    versions.mark_loaded(ref)
    assert versions.state(ref).status is LoadStatus.LOADED
    assert versions.directory(ref) == directory


async def test_a_store_that_is_away_is_waited_for_with_growing_pauses_and_said_so(
    private_s3_server, tmp_path, open_versions
):
    store = private_s3_server.settings(private_s3_server.new_bucket())
    ref = publish(store, tmp_path, b"weights")
    private_s3_server.stop()
    clock = Impatient()
    versions = open_versions(store, clock=clock)
    versions.want([ref])
    await eventually(lambda: len(clock.asked) >= 2, seconds=30)
    state = versions.state(ref)
    assert (state.status, state.reason) == (LoadStatus.PENDING, "StoreUnreachable")
    assert "check the endpoint" in state.message
    assert clock.asked[:2] == [1.0, 2.0]

    private_s3_server.start()

    await eventually(lambda: versions.state(ref).status is LoadStatus.FETCHED, seconds=30)


async def test_a_damaged_version_is_refused_for_good_also_after_a_restart(store, tmp_path, open_versions, s3_server):
    ref = publish(store, tmp_path, b"weights")
    key = f"{store.prefix}/versions/000001/model.safetensors"
    s3_server.client().put_object(Bucket=store.bucket, Key=key, Body=b"Weights")
    versions = open_versions(store)
    versions.want([ref])
    await eventually(lambda: versions.state(ref).status is LoadStatus.REFUSED)
    assert versions.state(ref).reason == "CorruptObject"
    assert "changed or damaged" in versions.state(ref).message

    again = open_versions(store)
    again.want([ref])

    assert again.states() == versions.states()
    assert again.directory(ref) is None


async def test_a_plan_that_names_other_weights_than_the_ledger_is_refused(store, tmp_path, open_versions):
    ref = publish(store, tmp_path, b"weights").model_copy(update={"sha256": "f" * 64})
    versions = open_versions(store)
    versions.want([ref])

    await eventually(lambda: versions.state(ref).status is LoadStatus.REFUSED)
    assert f"wants version 1 with weights {'f' * 64}" in versions.state(ref).message


async def test_what_is_on_disk_needs_no_store_after_a_restart(private_s3_server, tmp_path, open_versions):
    store = private_s3_server.settings(private_s3_server.new_bucket())
    ref = publish(store, tmp_path, b"weights")
    first = open_versions(store)
    first.want([ref])
    await eventually(lambda: first.state(ref).status is LoadStatus.FETCHED)
    private_s3_server.stop()

    again = open_versions(store)
    again.want([ref])

    await eventually(lambda: again.state(ref).status is LoadStatus.FETCHED, seconds=5)


async def test_what_was_damaged_on_disk_meanwhile_is_fetched_again(store, tmp_path, open_versions):
    ref = publish(store, tmp_path, b"weights")
    first = open_versions(store)
    first.want([ref])
    await eventually(lambda: first.directory(ref) is not None)
    (first.directory(ref) / "model.safetensors").write_bytes(b"Weights")

    again = open_versions(store)
    again.want([ref])
    await eventually(lambda: again.directory(ref) is not None)

    assert (again.directory(ref) / "model.safetensors").read_bytes() == b"weights"


async def test_the_disk_holds_the_versions_in_use_and_a_few_more(store, tmp_path, open_versions):
    versions = open_versions(store, keep=2)
    refs = [publish(store, tmp_path, f"weights {n}".encode()) for n in range(6)]
    for ref in refs:
        versions.want([refs[0], ref])
        await eventually(lambda ref=ref: versions.directory(ref) is not None)
    await eventually(lambda: len([p for p in (tmp_path / "work" / "versions").iterdir() if p.is_dir()]) == 4)

    kept = sorted(p.name[:6] for p in (tmp_path / "work" / "versions").iterdir() if p.is_dir())
    assert kept == ["000001", "000004", "000005", "000006"]
    assert versions.directory(refs[1]) is None
    versions.want([refs[0], refs[1]])
    await eventually(lambda: versions.directory(refs[1]) is not None)


async def test_plans_that_come_and_go_quickly_never_spoil_a_download(store, tmp_path, open_versions):
    refs = [publish(store, tmp_path, bytes([n]) * (2 << 20)) for n in range(3)]
    versions = open_versions(store)
    for turn in range(12):
        versions.want([refs[turn % 3]])
        await asyncio.sleep(0.01)
    versions.want(refs)

    await eventually(lambda: all(versions.directory(ref) is not None for ref in refs))
