"""The ledger on a real S3 server."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from speculator_runtime.contracts.ledger import Verdict, VerdictRecord
from speculator_runtime.contracts.plan import VersionRef
from speculator_runtime.storage import (
    AlreadyExistsError,
    ConditionalWriteUnsupportedError,
    CorruptObjectError,
    Ledger,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from speculator_runtime.storage.objects import MULTIPART_BYTES
from support.s3server import S3Server
from support.samples import make_block, make_manifest, write_version


@pytest.fixture
def ledger(store):
    return Ledger(store)


@pytest.fixture
def bucket(s3_server: S3Server, store):
    """What lies below the prefix, looked at with a plain client."""

    class Bucket:
        client = s3_server.client()

        def listing(self) -> list[str]:
            found = self.client.list_objects_v2(Bucket=store.bucket, Prefix="ns/name/").get("Contents", [])
            return [item["Key"].removeprefix("ns/name/") for item in found]

        def put(self, key: str, data: bytes) -> None:
            self.client.put_object(Bucket=store.bucket, Key=f"ns/name/{key}", Body=data)

        def get(self, key: str) -> bytes:
            return self.client.get_object(Bucket=store.bucket, Key=f"ns/name/{key}")["Body"].read()

    return Bucket()


def publish(ledger, tmp_path, content=b"weights", parent=None):
    version = ledger.claim_version()
    files = write_version(tmp_path / f"out-{version}", content)
    return ledger.publish(version, tmp_path / f"out-{version}", make_manifest(version, files, parent))


def test_numbers_are_claimed_once_however_many_claim_at_the_same_time(store):
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: Ledger(store).claim_version(), range(16)))

    assert sorted(numbers) == list(range(1, 17))


def test_a_number_whose_claimer_died_is_not_given_again_and_is_no_version(ledger, store, tmp_path):
    ledger.claim_version()

    published = publish(Ledger(store), tmp_path)

    assert published.manifest.version == 2
    assert [m.version for m in ledger.list_versions()] == [2]


def test_the_manifest_is_the_last_object_written(ledger, store, tmp_path, bucket):
    version = ledger.claim_version()
    files = write_version(tmp_path / "out")
    broken = make_manifest(version, files)
    (tmp_path / "out" / "model.safetensors").write_bytes(b"changed after it was described")

    with pytest.raises(CorruptObjectError, match="changed after it was described"):
        ledger.publish(version, tmp_path / "out", broken)

    assert f"versions/{version:06d}/manifest.json" not in bucket.listing()
    assert Ledger(store).list_versions() == []


def test_publishing_the_same_again_changes_nothing_and_another_manifest_is_refused(ledger, store, tmp_path):
    first = publish(ledger, tmp_path)

    assert Ledger(store).publish(1, tmp_path / "out-1", first.manifest).sha256 == first.sha256
    with pytest.raises(AlreadyExistsError):
        Ledger(store).publish(1, tmp_path / "out-1", first.manifest.model_copy(update={"training_step": 99}))
    assert Ledger(store).read_manifest(1).training_step == 10


def test_listing_reads_each_manifest_once(ledger, store, tmp_path):
    publish(ledger, tmp_path)
    publish(ledger, tmp_path)
    reader = Ledger(store)
    reads = []
    get = reader.store.get
    reader.store.get = lambda key: reads.append(key) or get(key)

    assert [m.version for m in reader.list_versions()] == [1, 2]
    assert [m.version for m in reader.list_versions(after=1)] == [2]
    assert [m.version for m in reader.list_versions()] == [1, 2]

    assert reads == ["versions/000001/manifest.json", "versions/000002/manifest.json"]


def test_more_versions_than_one_page_of_a_listing(ledger, bucket):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: bucket.put(f"versions/{n:06d}/claim.json", b"{}"), range(1, 1103)))

    assert ledger.version_numbers() == list(range(1, 1103))
    assert ledger.version_numbers(after=1100) == [1101, 1102]
    assert ledger.claim_version() == 1103


def test_a_large_file_goes_up_in_parts_and_comes_back_verified(ledger, store, tmp_path, s3_server):
    content = bytes(range(256)) * ((2 * MULTIPART_BYTES + 777) // 256)
    publish(ledger, tmp_path, content)

    head = s3_server.client().head_object(Bucket=store.bucket, Key="ns/name/versions/000001/model.safetensors")
    Ledger(store).fetch(1, tmp_path / "in")

    assert head["ETag"].strip('"').endswith("-3")
    assert (tmp_path / "in" / "model.safetensors").read_bytes() == content
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("damage", [b"weight", b"Weights", b""], ids=["truncated", "changed", "emptied"])
def test_a_damaged_object_is_never_delivered(ledger, tmp_path, bucket, damage):
    publish(ledger, tmp_path)
    bucket.put("versions/000001/model.safetensors", damage)

    with pytest.raises(CorruptObjectError, match=r"versions/000001/model\.safetensors.*manifest says"):
        ledger.fetch(1, tmp_path / "in")

    assert not (tmp_path / "in").exists()


def test_a_fetch_resumes_where_an_earlier_one_was_killed(ledger, store, tmp_path):
    content = bytes(range(256)) * (3 << 12)
    publish(ledger, tmp_path, content)
    killed, again = Ledger(store), Ledger(store)
    killed_append, again_append = killed.store._append, again.store._append
    starts = {}

    def die_after_a_third(name, part, start, etag):
        if not name.endswith("model.safetensors"):
            return killed_append(name, part, start, etag)
        part.write_bytes(content[: 1 << 20])
        raise KeyboardInterrupt

    def note_start(name, part, start, etag):
        starts[name.rsplit("/", 1)[1]] = start
        again_append(name, part, start, etag)

    killed.store._append = die_after_a_third
    again.store._append = note_start
    with pytest.raises(KeyboardInterrupt):
        killed.fetch(1, tmp_path / "in")
    assert not (tmp_path / "in").exists()

    again.fetch(1, tmp_path / "in")

    assert starts == {"model.safetensors": 1 << 20}
    assert (tmp_path / "in" / "model.safetensors").read_bytes() == content


def test_a_store_that_goes_away_in_mid_download_costs_a_retry_only(private_s3_server, tmp_path):
    store = private_s3_server.settings(private_s3_server.new_bucket())
    publish(Ledger(store), tmp_path, bytes(3 << 20))
    waits = []

    def restart(seconds):
        waits.append(seconds)
        private_s3_server.start()

    ledger = Ledger(store, sleep=restart)
    real = ledger.store._append
    calls = []

    def outage_first(name, part, start, etag):
        calls.append(name)
        if len(calls) == 1:
            private_s3_server.stop()
        real(name, part, start, etag)

    ledger.store._append = outage_first
    ledger.fetch(1, tmp_path / "in")

    assert len(waits) == 1
    assert (tmp_path / "in" / "model.safetensors").stat().st_size == 3 << 20


def test_a_version_that_was_never_published_is_said_to_be_missing(ledger, tmp_path):
    with pytest.raises(ObjectNotFoundError, match=r"versions/000007/manifest\.json.*does not exist"):
        ledger.fetch(7, tmp_path / "in")


def test_a_manifest_that_is_not_one_names_the_field(ledger, bucket):
    bucket.put("versions/000001/manifest.json", b'{"version": 1}')

    with pytest.raises(CorruptObjectError, match=r"versions/000001/manifest\.json.*files"):
        ledger.list_versions()


def test_versions_form_a_chain_and_a_rewritten_parent_shows(ledger, store, tmp_path, bucket):
    first = publish(ledger, tmp_path)
    publish(ledger, tmp_path, b"better", parent=first)
    assert Ledger(store).verify_chain() == []

    text = bucket.get("versions/000001/manifest.json").replace(b'"training_step": 10', b'"training_step": 11')
    bucket.put("versions/000001/manifest.json", text)

    (problem,) = Ledger(store).verify_chain()
    assert "version 2: it was built on a manifest of version 1 with sha256" in problem


def test_evidence_is_stored_once_however_often_it_is_given(ledger, store, bucket):
    blocks = [make_block(i) for i in range(4)]

    assert ledger.append_evidence(1, blocks[:2]) == 2
    assert ledger.append_evidence(1, blocks) == 2
    assert Ledger(store).append_evidence(1, blocks[1:]) == 0

    assert Ledger(store).read_evidence(1) == blocks
    assert [key.rsplit("/", 1)[1] for key in bucket.listing() if "evidence" in key] == [
        "00000001-uid-a-00000000.jsonl",
        "00000001-uid-a-00000002.jsonl",
    ]


def test_two_writers_of_evidence_at_once_store_every_block_once(store, bucket):
    blocks = [make_block(i) for i in range(6)]
    first, second = Ledger(store), Ledger(store)
    for ledger in (first, second):
        ledger.supports_conditional_writes()
    both_have_looked = threading.Barrier(2)

    def append(ledger, some):
        read = ledger.read_evidence

        def read_then_wait(version):
            known = read(version)
            if not known:
                both_have_looked.wait(10)
            return known

        ledger.read_evidence = read_then_wait
        return ledger.append_evidence(1, some)

    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(append, [first, second], [blocks[:4], blocks]))

    assert sum(counts) == 6
    lines = b"".join(bucket.get(key) for key in bucket.listing() if "evidence" in key).splitlines()
    assert len(lines) == 6
    assert Ledger(store).read_evidence(1) == blocks


def test_evidence_that_contradicts_what_is_stored_is_refused(ledger):
    ledger.append_evidence(1, [make_block(0)])

    with pytest.raises(CorruptObjectError, match="two different blocks"):
        ledger.append_evidence(1, [make_block(0, seconds=9.0)])


def test_evidence_of_pods_and_generations_comes_back_in_one_order(ledger, store):
    blocks = [make_block(i, generation=g, pod_uid=p) for p in "ab" for g in (1, 2) for i in range(2)]

    ledger.append_evidence(3, reversed(blocks))

    assert Ledger(store).read_evidence(3) == blocks


def verdict(sequence, message="faster"):
    return VerdictRecord(
        sequence=sequence,
        version=VersionRef(version=1, sha256="a" * 64),
        verdict=Verdict.PROMOTED,
        reason="Faster",
        message=message,
        decided_by="gate",
        at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_verdicts_are_written_once_and_read_in_order(ledger, store):
    for sequence in (2, 1, 10):
        ledger.write_verdict(verdict(sequence))
    ledger.write_verdict(verdict(2))

    with pytest.raises(AlreadyExistsError):
        Ledger(store).write_verdict(verdict(2, message="a former leader's opinion"))
    assert [record.sequence for record in Ledger(store).read_verdicts(1)] == [1, 2, 10]


class IgnoresConditions:
    """A store that accepts `If-None-Match` and does not look at it, as old ones do."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def put_object(self, **arguments):
        arguments.pop("IfNoneMatch", None)
        return self._client.put_object(**arguments)


def test_a_store_without_conditional_writes_is_found_out_and_named(store, s3_server):
    ledger = Ledger(store, client=IgnoresConditions(s3_server.client()))

    with pytest.raises(ConditionalWriteUnsupportedError, match="two trainers could claim one version"):
        ledger.claim_version()


def test_the_only_writer_can_use_a_store_without_conditional_writes(store, s3_server, tmp_path):
    ledger = Ledger(store, client=IgnoresConditions(s3_server.client()), single_writer=True)

    assert publish(ledger, tmp_path).manifest.version == 1
    assert publish(ledger, tmp_path).manifest.version == 2
    assert ledger.append_evidence(1, [make_block(0)]) == 1


class Collides:
    """AWS while another conditional write of the same key is under way: 409, and nothing is there yet."""

    def __init__(self, client, times):
        self._client, self.left = client, times

    def __getattr__(self, name):
        return getattr(self._client, name)

    def put_object(self, **arguments):
        if "IfNoneMatch" in arguments and self.left:
            self.left -= 1
            error = {"Code": "ConditionalRequestConflict", "Message": "at the same time"}
            raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": 409}}, "PutObject")
        return self._client.put_object(**arguments)


def test_a_write_that_collides_is_tried_again_until_it_is_decided(store, s3_server):
    ledger = Ledger(store, client=Collides(s3_server.client(), 3), sleep=lambda seconds: None)

    ledger.store.put("once", b"mine", only_if_absent=True)

    assert Ledger(store).store.get("once") == b"mine"
    with pytest.raises(StoreUnavailableError, match="kept colliding"):
        Ledger(store, client=Collides(s3_server.client(), 99), sleep=lambda seconds: None).store.put(
            "never", b"mine", only_if_absent=True
        )
