"""The S3 ledger from the operator's event loop: calls in threads, finite times, errors as values, reads cached.

What is known is kept in memory for as long as this replica leads; a new leader reads it once. A store that does not
answer yields a `Problem` and what was known before, and is asked again after a while: a dead bucket delays nobody else.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import boto3
from botocore.config import Config

from speculator_operator.reconcile.observed import LedgerView, Problem, VersionEntry
from speculator_runtime.contracts.ledger import VerdictRecord
from speculator_runtime.contracts.plan import Block
from speculator_runtime.contracts.settings import StoreSettings
from speculator_runtime.storage import AlreadyExistsError, Ledger, ObjectNotFoundError, StoreConfigurationError
from speculator_runtime.storage.chain import StoredManifest
from speculator_runtime.storage.errors import CorruptObjectError, StoreError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Result = TypeVar("Result")


@dataclass(frozen=True)
class S3Credentials:
    """Access key of the Secret that the Speculator names."""

    access_key_id: str
    secret_access_key: str = field(repr=False)


def s3_client(settings: StoreSettings, credentials: S3Credentials | None) -> "S3Client":
    """A client that gives up within seconds; without credentials boto's standard chain (the pod's own identity).

    Raises StoreConfigurationError for an endpoint that is no URL.
    """
    config = Config(
        region_name=settings.region,
        connect_timeout=2,
        read_timeout=8,
        retries={"mode": "standard", "total_max_attempts": 2},
        max_pool_connections=4,
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = boto3.session.Session(
        aws_access_key_id=credentials.access_key_id if credentials else None,
        aws_secret_access_key=credentials.secret_access_key if credentials else None,
    )
    try:
        return session.client("s3", endpoint_url=settings.endpoint, config=config)
    except ValueError as error:
        raise StoreConfigurationError(f"spec.storage.s3.endpoint {settings.endpoint!r}: {error}") from error


def problem_of(error: StoreError) -> Problem:
    """The condition's words for a store's error."""
    return Problem(error.reason, str(error))


class LedgerSession:
    """One Speculator's ledger, with one settings and credentials. One call at a time."""

    def __init__(
        self,
        settings: StoreSettings,
        credentials: S3Credentials | None,
        executor: Executor,
        fence: Callable[[], float],
        *,
        poll_seconds: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.credentials = credentials
        self._executor = executor
        self._fence = fence
        self._poll = poll_seconds
        self._monotonic = monotonic
        self._lock = asyncio.Lock()
        self._ledger: Ledger | None = None
        self._due = float("-inf")
        self._read = False
        self._problem: Problem | None = None
        self._manifests: dict[int, StoredManifest] = {}
        self._unreadable: dict[int, str] = {}
        self._verdicts: dict[int, list[VerdictRecord]] = {}
        self._evidence: dict[int, list[Block]] = {}

    async def look(self, versions: Iterable[int]) -> LedgerView:
        """What the ledger holds: all manifests and verdicts, and the evidence of these versions."""
        wanted = set(versions)
        async with self._lock:
            for version in set(self._evidence) - wanted:
                del self._evidence[version]
            missing = wanted - set(self._evidence)
            if self._monotonic() >= self._due or (missing and self._problem is None):
                await self._refresh(missing)
        return LedgerView(
            read=self._read,
            versions=tuple(
                VersionEntry(stored.manifest, stored.sha256) for _, stored in sorted(self._manifests.items())
            ),
            unreadable=dict(self._unreadable),
            history=tuple(record for _, records in sorted(self._verdicts.items()) for record in records),
            evidence=tuple(block for _, blocks in sorted(self._evidence.items()) for block in blocks),
            problem=self._problem,
        )

    async def store_blocks(self, version: int, blocks: list[Block]) -> int | Problem:
        """Write blocks as evidence; only then do they count. Returns how many were new."""
        self._fence()
        async with self._lock:
            try:
                stored = await self._call(lambda ledger: ledger.append_evidence(version, blocks))
                # Read back through the ledger's cache: what counts is what is stored, in whichever order it came.
                self._evidence[version] = await self._call(lambda ledger: ledger.read_evidence(version))
            except StoreError as error:
                return self._failed(error)
        return stored

    async def record(self, verdict: VerdictRecord) -> Problem | None:
        """Write a verdict. If its number is taken by another, that one holds and the next pass adopts it."""
        self._fence()
        version = verdict.version.version
        async with self._lock:
            try:
                with contextlib.suppress(AlreadyExistsError):
                    await self._call(lambda ledger: ledger.write_verdict(verdict))
                self._verdicts[version] = await self._call(lambda ledger: ledger.read_verdicts(version))
            except StoreError as error:
                return self._failed(error)
        if verdict in self._verdicts[version]:
            return None
        text = f"verdict {verdict.sequence} on version {version} was given by another replica; its verdict holds"
        return Problem("VerdictTaken", text)

    async def _refresh(self, evidence_of: set[int]) -> None:
        try:
            await self._call(self._read_versions)
            for version in sorted(evidence_of):
                self._evidence[version] = await self._call(lambda ledger, v=version: ledger.read_evidence(v))  # type: ignore[misc]
        except StoreError as error:
            self._failed(error)
            return
        self._read, self._problem = True, None
        self._due = self._monotonic() + self._poll

    def _read_versions(self, ledger: Ledger) -> None:
        """Runs in a thread, under the lock. The trainer claims numbers in order: what is behind a published one is not
        looked at again."""
        for number in ledger.version_numbers(max(self._manifests, default=0)):
            try:
                stored = ledger.read_stored(number)
            except ObjectNotFoundError:
                continue
            except CorruptObjectError as error:
                self._unreadable[number] = str(error)
                continue
            self._verdicts[number] = ledger.read_verdicts(number)
            self._manifests[number] = stored
            self._unreadable.pop(number, None)

    def _failed(self, error: StoreError) -> Problem:
        self._problem = problem_of(error)
        self._due = self._monotonic() + 2 * self._poll
        return self._problem

    async def _call(self, work: Callable[[Ledger], Result]) -> Result:
        def run() -> Result:
            if self._ledger is None:
                client = s3_client(self.settings, self.credentials)
                self._ledger = Ledger(self.settings, single_writer=True, client=client)
            return work(self._ledger)

        return await asyncio.get_running_loop().run_in_executor(self._executor, run)
