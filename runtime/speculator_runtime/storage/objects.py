"""Objects below a prefix: the S3 calls the ledger is made of, with finite time-outs, retries and checksums.

Nothing here knows of versions or evidence. Works with AWS and with S3-compatible servers (MinIO, Ceph, versitygw): a
custom CA comes by `AWS_CA_BUNDLE`, credentials by the standard AWS chain.
"""

import base64
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from speculator_runtime.contracts.settings import StoreSettings

from .errors import (
    AlreadyExistsError,
    CorruptObjectError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
    store_errors,
    translate,
    where,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CHUNK = 1 << 20
MULTIPART_BYTES = 16 << 20
"""Files from this size on are uploaded in parts of this size."""
DOWNLOAD_ATTEMPTS = 5
_CONDITIONAL_ATTEMPTS = 6


@dataclass(frozen=True)
class ObjectInfo:
    """One listed object; `key` is below the prefix."""

    key: str
    size: int
    etag: str


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes and lower-case hex sha256 of a file."""

    size: int
    sha256: str


def digest_file(path: Path) -> FileDigest:
    """Reads the file once. Raises OSError."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileDigest(size, digest.hexdigest())


def make_client(settings: StoreSettings, *, connect_seconds: float = 5.0, read_seconds: float = 30.0) -> "S3Client":
    """A boto3 client that gives up: five tries with exponential back-off, each within the time-outs.

    Raises StoreConfigurationError for an endpoint that is no URL.
    """
    config = Config(
        region_name=settings.region,
        connect_timeout=connect_seconds,
        read_timeout=read_seconds,
        retries={"mode": "standard", "total_max_attempts": 5},
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        # Checksums we send are explicit (sha256); boto's own default trailers are unknown to many compatible stores.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="speculator-operator",
    )
    try:
        # A session of our own: boto3's default session is not safe to create clients from several threads.
        return boto3.session.Session().client("s3", endpoint_url=settings.endpoint, config=config)
    except (ValueError, BotoCoreError) as error:
        raise translate(error, settings, "make an S3 client") from error


class ObjectStore:
    """Objects below `settings.prefix`. All keys given and returned are relative to it. Thread-safe."""

    def __init__(
        self,
        settings: StoreSettings,
        client: "S3Client | None" = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._client = client if client is not None else make_client(settings)
        self._sleep = sleep
        prefix = settings.prefix.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""

    def check(self) -> None:
        """One cheap listing; raises the typed error that says why the store cannot be used."""
        with store_errors(self.settings, f"list {self._prefix or '/'}"):
            self._client.list_objects_v2(Bucket=self.settings.bucket, Prefix=self._prefix, MaxKeys=1)

    def objects(self, prefix: str) -> list[ObjectInfo]:
        """All objects whose key begins with `prefix`, ascending."""
        paginator = self._client.get_paginator("list_objects_v2")
        found = []
        with store_errors(self.settings, f"list {self._prefix}{prefix}"):
            for page in paginator.paginate(Bucket=self.settings.bucket, Prefix=self._prefix + prefix):
                for item in page.get("Contents", []):
                    key = item["Key"].removeprefix(self._prefix)
                    if not key.endswith("/"):
                        found.append(ObjectInfo(key, item["Size"], item.get("ETag", "")))
        return sorted(found, key=lambda info: info.key)

    def folders(self, prefix: str, start_after: str = "") -> list[str]:
        """Names of the folders directly below `prefix` (which ends in a slash), ascending, one request per 1,000."""
        paginator = self._client.get_paginator("list_objects_v2")
        full = self._prefix + prefix
        extra = {"StartAfter": full + start_after} if start_after else {}
        names = []
        with store_errors(self.settings, f"list {full}"):
            for page in paginator.paginate(Bucket=self.settings.bucket, Prefix=full, Delimiter="/", **extra):  # type: ignore[arg-type]
                names += [item["Prefix"].removeprefix(full).rstrip("/") for item in page.get("CommonPrefixes", [])]
        return sorted(names)

    def get(self, key: str) -> bytes:
        """A small object's bytes. Raises ObjectNotFoundError and other StoreErrors."""
        with store_errors(self.settings, f"read {self._prefix}{key}"):
            answer = self._client.get_object(Bucket=self.settings.bucket, Key=self._prefix + key)
            return answer["Body"].read()

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; raises CorruptObjectError when the object is shorter."""
        if length == 0:
            return b""
        with store_errors(self.settings, f"read {self._prefix}{key}"):
            answer = self._client.get_object(
                Bucket=self.settings.bucket, Key=self._prefix + key, Range=f"bytes={start}-{start + length - 1}"
            )
            data = answer["Body"].read()
        if len(data) != length:
            raise CorruptObjectError(
                f"{self._prefix}{key} in bucket {self.settings.bucket!r} ends at byte {start + len(data)}, "
                f"expected at least {start + length}: it is truncated; upload it again"
            )
        return data

    def put(self, key: str, data: bytes, *, only_if_absent: bool = False) -> None:
        """Write an object in one request, its sha256 checked by the store.

        With `only_if_absent` the write is conditional. It is idempotent by content: if the object is there with the
        same bytes (a retry whose first try had arrived) that is a success, with others AlreadyExistsError.
        """
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        condition = {"IfNoneMatch": "*"} if only_if_absent else {}
        for attempt in range(_CONDITIONAL_ATTEMPTS):
            try:
                with store_errors(self.settings, f"write {self._prefix}{key}"):
                    self._client.put_object(
                        Bucket=self.settings.bucket,
                        Key=self._prefix + key,
                        Body=data,
                        ChecksumSHA256=checksum,
                        **condition,  # type: ignore[arg-type]
                    )
                return
            except AlreadyExistsError:
                try:
                    if self.get(key) != data:
                        raise
                    return
                except ObjectNotFoundError:
                    # AWS answers 409 while another conditional write is under way, which may yet fail.
                    self._sleep(0.1 * 2**attempt)
        raise StoreUnavailableError(
            f"could not write {self._prefix}{key} in {where(self.settings)}: other writes of it kept colliding"
        )

    def delete(self, key: str) -> None:
        """Delete an object; one that is gone already is no error."""
        with store_errors(self.settings, f"delete {self._prefix}{key}"):
            self._client.delete_object(Bucket=self.settings.bucket, Key=self._prefix + key)

    def upload(self, key: str, path: Path, digest: FileDigest) -> None:
        """Upload a file, in parts when it is large, with sha256 checksums that the store verifies."""
        transfer = TransferConfig(
            multipart_threshold=MULTIPART_BYTES, multipart_chunksize=MULTIPART_BYTES, max_concurrency=2
        )
        extra: dict[str, object] = {"Metadata": {"sha256": digest.sha256}, "ChecksumAlgorithm": "SHA256"}
        doing = f"upload {self._prefix}{key}"
        try:
            with store_errors(self.settings, doing):
                self._client.upload_file(
                    str(path), self.settings.bucket, self._prefix + key, ExtraArgs=extra, Config=transfer
                )
        except S3UploadFailedError as error:
            cause = error.__context__
            if isinstance(cause, ClientError | BotoCoreError):
                raise translate(cause, self.settings, doing) from error
            raise StoreError(f"could not {doing} in bucket {self.settings.bucket!r}: {error}") from error

    def download(self, key: str, path: Path, *, size: int | None = None, sha256: str | None = None) -> FileDigest:
        """Bring an object to `path`, verified, visible there only when complete.

        A connection that breaks, or a process that dies, resumes where the bytes ended. Raises CorruptObjectError when
        size or sha256 are not as said; nothing is left behind then, so that the next call starts afresh.
        """
        name = f"{self._prefix}{key}"
        with store_errors(self.settings, f"read {name}"):
            head = self._client.head_object(Bucket=self.settings.bucket, Key=name)
        total, etag = head["ContentLength"], head["ETag"]
        if size is not None and total != size:
            raise CorruptObjectError(
                f"{name} in {where(self.settings)} has {total} bytes, its manifest says {size}: it was truncated or "
                "replaced after it was published"
            )
        # The part's name carries the object's identity: bytes of two uploads are never joined.
        part = path.with_name(f"{path.name}.{hashlib.sha256(etag.encode()).hexdigest()[:12]}.part")
        for stale in path.parent.iterdir():
            if stale != part and stale.name.startswith(f"{path.name}.") and stale.suffix == ".part":
                stale.unlink()
        self._download_part(name, part, total, etag)
        found = digest_file(part)
        if found.size != total or (sha256 is not None and found.sha256 != sha256):
            part.unlink()
            raise CorruptObjectError(
                f"{name} in {where(self.settings)} has sha256 {found.sha256}, its manifest says {sha256}: it was "
                "changed or damaged after it was published"
            )
        part.replace(path)
        return found

    def _download_part(self, name: str, part: Path, total: int, etag: str) -> None:
        fruitless = 0
        while True:
            have = part.stat().st_size if part.exists() else 0
            if have >= total > 0:
                return
            try:
                self._append(name, part, have, etag)
                if part.stat().st_size >= total:
                    return
                raise StoreUnavailableError(f"{name}: the answer ended at {part.stat().st_size} of {total} bytes")
            except StoreError as error:
                now = part.stat().st_size if part.exists() else 0
                # Progress resets the count: a slow store that drops connections still ends.
                fruitless = 0 if now > have else fruitless + 1
                if not error.transient or fruitless >= DOWNLOAD_ATTEMPTS:
                    raise
                self._sleep(min(8.0, 0.25 * 2**fruitless))

    def _append(self, name: str, part: Path, start: int, etag: str) -> None:
        extra = {"Range": f"bytes={start}-"} if start else {}
        with store_errors(self.settings, f"read {name}"), part.open("ab") as file:
            answer = self._client.get_object(Bucket=self.settings.bucket, Key=name, IfMatch=etag, **extra)  # type: ignore[arg-type]
            for chunk in answer["Body"].iter_chunks(CHUNK):
                file.write(chunk)
