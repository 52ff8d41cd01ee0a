"""The ledger: versions, evidence, verdicts and the trainer's checkpoints in one bucket (layout: contracts/ledger.py).

Calls block; a program with an event loop runs them in threads. One `Ledger` may be shared between threads.
"""

import json
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from speculator_runtime.contracts.ledger import FileEntry, Manifest, VerdictRecord, version_prefix
from speculator_runtime.contracts.plan import Block
from speculator_runtime.contracts.settings import StoreSettings

from .chain import StoredManifest, check_chain, encode_manifest, manifest_sha256
from .errors import (
    AlreadyExistsError,
    ConditionalWriteUnsupportedError,
    CorruptObjectError,
    ObjectNotFoundError,
    StoreError,
)
from .evidence import block_key, decode_blocks, encode_blocks, in_order, parse_part_name, part_name
from .files import fetch_files
from .objects import FileDigest, ObjectStore, digest_file

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_NUMBER = re.compile(r"^\d{6,}$")
_CLAIM_ATTEMPTS = 100


def describe_files(directory: Path) -> dict[str, FileEntry]:
    """`Manifest.files` of the plain files in a directory, for example model.safetensors and config.json."""
    found = {}
    for path in sorted(directory.iterdir()):
        if path.is_file():
            digest = digest_file(path)
            found[path.name] = FileEntry(sha256=digest.sha256, size=digest.size)
    return found


class Ledger:
    """The ledger of one Speculator. All methods raise StoreError's subclasses."""

    def __init__(
        self,
        settings: StoreSettings,
        *,
        single_writer: bool = False,
        client: "S3Client | None" = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`single_writer`: the caller alone may claim, by other means (the trainer's Deployment has one replica and
        strategy Recreate; the operator holds its Lease). It lets `claim_version` work on a store without conditional
        writes: look, write, read back.
        """
        self.settings = settings
        self.store = ObjectStore(settings, client=client, sleep=sleep)
        self._single_writer = single_writer
        self._conditional: bool | None = None
        self._manifests: dict[int, StoredManifest] = {}
        self._parts: dict[str, list[Block]] = {}

    # Versions

    def supports_conditional_writes(self) -> bool:
        """Whether `If-None-Match: *` is honoured, found out once by writing one probe object twice.

        A store that ignores the header would give one number to two trainers without any error, so it is never assumed.
        """
        if self._conditional is None:
            self._conditional = self._probe()
        return self._conditional

    def _probe(self) -> bool:
        key = "probes/conditional-write"
        try:
            self.store.put(key, uuid.uuid4().bytes, only_if_absent=True)
            self.store.put(key, uuid.uuid4().bytes, only_if_absent=True)
        except AlreadyExistsError:
            return True
        except ConditionalWriteUnsupportedError:
            return False
        return False

    def claim_version(self, claimed_by: str = "") -> int:
        """The next number, ours alone. Numbers only grow; one whose claimer died stays unused.

        Raises ConditionalWriteUnsupportedError on a store without conditional writes, unless `single_writer`.
        """
        conditional = self.supports_conditional_writes()
        if not conditional and not self._single_writer:
            raise ConditionalWriteUnsupportedError(
                f"bucket {self.settings.bucket!r} at {self.settings.endpoint or 'AWS S3'} does not honour conditional "
                "writes (If-None-Match: *), so two trainers could claim one version; use a store that does, or make "
                "sure that there is one writer and say so (single_writer)"
            )
        number = max(self.version_numbers(), default=0) + 1
        for _ in range(_CLAIM_ATTEMPTS):
            claim = {
                "schema_version": 1,
                "claim": uuid.uuid4().hex,
                "claimed_by": claimed_by,
                "claimed": datetime.now(UTC).isoformat(),
                "conditional": conditional,
            }
            data = json.dumps(claim, sort_keys=True).encode()
            key = f"{version_prefix(number)}/claim.json"
            try:
                self.store.put(key, data, only_if_absent=conditional)
            except AlreadyExistsError:
                number += 1
                continue
            if conditional or self.store.get(key) == data:
                return number
            number += 1
        raise StoreError(f"could not claim a version in {_CLAIM_ATTEMPTS} tries, the last one was {number - 1}")

    def version_numbers(self, after: int = 0) -> list[int]:
        """All numbers claimed so far above `after`, published or not, ascending."""
        start = f"{after:06d}/~" if after else ""
        names = self.store.folders("versions/", start_after=start)
        return sorted(int(name) for name in names if _NUMBER.match(name) and int(name) > after)

    def publish(self, version: int, directory: Path, manifest: Manifest) -> StoredManifest:
        """Upload the manifest's files from `directory`, then the manifest: the version exists from then on.

        Every file is checked against its entry first (CorruptObjectError). Publishing the same again is a no-op;
        another manifest for the number is AlreadyExistsError.
        """
        if manifest.version != version:
            raise ValueError(f"the manifest is of version {manifest.version}, asked to publish {version}")
        for name, entry in sorted(manifest.files.items()):
            digest = digest_file(directory / name)
            if digest != FileDigest(entry.size, entry.sha256):
                raise CorruptObjectError(
                    f"{directory / name} has {digest.size} bytes and sha256 {digest.sha256}, the manifest says "
                    f"{entry.size} and {entry.sha256}: it changed after it was described"
                )
            self.store.upload(f"{version_prefix(version)}/{name}", directory / name, digest)
        data = encode_manifest(manifest)
        self.store.put(
            f"{version_prefix(version)}/manifest.json", data, only_if_absent=self.supports_conditional_writes()
        )
        stored = StoredManifest(manifest, manifest_sha256(data))
        self._manifests[version] = stored
        return stored

    def list_versions(self, after: int = 0) -> list[Manifest]:
        """Published versions above `after`, ascending. One listing, and one read for each manifest not seen before.

        A manifest that cannot be parsed raises CorruptObjectError; pass its number as `after` to go on behind it.
        """
        found = []
        for number in self.version_numbers(after):
            try:
                found.append(self.read_stored(number).manifest)
            except ObjectNotFoundError:  # Claimed, and still being uploaded or given up.
                continue
        return found

    def read_manifest(self, version: int) -> Manifest:
        """A version's manifest; ObjectNotFoundError if it was not published."""
        return self.read_stored(version).manifest

    def read_stored(self, version: int) -> StoredManifest:
        """A version's manifest and the sha256 of its bytes (for a child's `parent_manifest_sha256`). Cached."""
        if version not in self._manifests:
            key = f"{version_prefix(version)}/manifest.json"
            data = self.store.get(key)
            try:
                manifest = Manifest.model_validate_json(data)
            except ValidationError as error:
                first = error.errors()[0]
                field = ".".join(map(str, first["loc"])) or "(file)"
                raise CorruptObjectError(
                    f"{key} in bucket {self.settings.bucket!r}: {field}: {first['msg']}"
                ) from error
            if manifest.version != version or "model.safetensors" not in manifest.files:
                raise CorruptObjectError(
                    f"{key} in bucket {self.settings.bucket!r} is of version {manifest.version} and lists "
                    f"{sorted(manifest.files)}; expected version {version} with model.safetensors"
                )
            self._manifests[version] = StoredManifest(manifest, manifest_sha256(data))
        return self._manifests[version]

    def verify_chain(self) -> list[str]:
        """Every break in the chain of all published versions as a sentence; empty when it is whole."""
        return check_chain({m.version: self.read_stored(m.version) for m in self.list_versions()})

    def fetch(self, version: int, destination: Path) -> Manifest:
        """Bring a version to `destination`: every file verified by size and sha256, the directory whole or absent.

        What is there already and verifies is kept; a broken download resumes. Raises ObjectNotFoundError,
        CorruptObjectError and the connection's errors.
        """
        manifest = self.read_manifest(version)
        fetch_files(self.store, version_prefix(version), manifest.files, destination)
        return manifest

    # Evidence

    def append_evidence(self, version: int, blocks: Iterable[Block]) -> int:
        """Store the blocks that are not stored yet, in new parts; returns how many. The same block is stored once.

        Raises CorruptObjectError when a block differs from the one stored under its key.
        """
        conditional = self.supports_conditional_writes()
        wanted = in_order(blocks)
        stored = 0
        for _ in range(_CLAIM_ATTEMPTS):
            known = self.read_evidence(version)
            fresh = _missing(wanted, known)
            if not fresh:
                return stored
            runs: dict[tuple[int, str], list[Block]] = defaultdict(list)
            for block in fresh:
                runs[block.generation, block.pod_uid].append(block)
            try:
                for (generation, pod_uid), run in sorted(runs.items()):
                    name = part_name(generation, pod_uid, run[0].index)
                    key = f"{version_prefix(version)}/evidence/{name}"
                    self.store.put(key, encode_blocks(run), only_if_absent=conditional)
                    self._parts[key] = run
                    stored += len(run)
            except AlreadyExistsError:  # Another writer was first: read what it stored and add the rest.
                continue
            return stored
        raise StoreError(f"evidence of version {version} was changed by others {_CLAIM_ATTEMPTS} times in a row")

    def read_evidence(self, version: int) -> list[Block]:
        """All blocks of a version in (pod_uid, generation, index) order. Parts seen before are not read again."""
        blocks: list[Block] = []
        for info in self.store.objects(f"{version_prefix(version)}/evidence/"):
            name = info.key.rsplit("/", 1)[1]
            if parse_part_name(name) is None:
                raise CorruptObjectError(f"{info.key} in bucket {self.settings.bucket!r} is not a part of evidence")
            if info.key not in self._parts:
                self._parts[info.key] = decode_blocks(self.store.get(info.key), info.key)
            blocks += self._parts[info.key]
        return in_order(blocks)

    # Verdicts

    def write_verdict(self, record: VerdictRecord) -> None:
        """Store a decision under its sequence number, once. Writing the same again is a no-op; another under the
        same number is AlreadyExistsError: somebody else decided, read it.
        """
        key = f"{version_prefix(record.version.version)}/verdicts/{record.sequence:03d}.json"
        data = (json.dumps(record.model_dump(mode="json"), sort_keys=True, indent=2) + "\n").encode()
        self.store.put(key, data, only_if_absent=self.supports_conditional_writes())

    def read_verdicts(self, version: int) -> list[VerdictRecord]:
        """Decisions on a version in the order of their sequence; the next one's number is the last one's plus one."""
        records = []
        for info in self.store.objects(f"{version_prefix(version)}/verdicts/"):
            try:
                records.append(VerdictRecord.model_validate_json(self.store.get(info.key)))
            except ValidationError as error:
                raise CorruptObjectError(
                    f"{info.key} in bucket {self.settings.bucket!r} is not a verdict: {error.errors()[0]['msg']}"
                ) from error
        return sorted(records, key=lambda record: record.sequence)


def _missing(wanted: list[Block], known: list[Block]) -> list[Block]:
    """Blocks of `wanted` that `known` lacks; raises CorruptObjectError if one differs from its stored twin."""
    stored = {block_key(block) for block in known}
    return [block for block in in_order([*known, *wanted]) if block_key(block) not in stored]
