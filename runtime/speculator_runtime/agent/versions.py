"""Drafter versions on this replica: fetched in the background, verified, bounded on disk, refused once and for all.

Never decides which version to run; keeps on disk what the plan names, and a few more.
"""

import asyncio
import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from speculator_runtime.contracts.ledger import Manifest
from speculator_runtime.contracts.plan import LoadStatus, VersionRef, VersionState
from speculator_runtime.storage import CorruptObjectError, Ledger, StoreError
from speculator_runtime.storage.chain import encode_manifest
from speculator_runtime.storage.files import verified

from .clock import Clock
from .journal import Journal, write_atomically

log = logging.getLogger(__name__)
_FIRST_RETRY_SECONDS = 1.0
_LAST_RETRY_SECONDS = 60.0
_DIRECTORY = re.compile(r"^\d{6,}-[0-9a-f]{12}$")


class VersionStore:
    """Versions by digest. Used from one event loop; downloads run in threads."""

    def __init__(self, root: Path, ledger: Ledger, journal: Journal, clock: Clock, keep: int) -> None:
        self._root = root
        self._ledger = ledger
        self._journal = journal
        self._clock = clock
        self._keep = keep
        self._wanted: tuple[VersionRef, ...] = ()
        self._refused = {state.ref: state for state in journal.load_refusals()}
        self._states: dict[VersionRef, VersionState] = {}
        self._tasks: dict[VersionRef, asyncio.Task[None]] = {}
        self._never = asyncio.Event()
        root.mkdir(parents=True, exist_ok=True)

    def want(self, refs: Iterable[VersionRef]) -> None:
        """From now on keep these on disk; what is missing is fetched in the background, forever retried."""
        self._wanted = tuple(dict.fromkeys(refs))
        self._tasks = {ref: task for ref, task in self._tasks.items() if not task.done()}
        for ref in self._wanted:
            # One task a version, ever: two downloads of one file would spoil each other.
            if ref not in self._refused and self.directory(ref) is None and ref not in self._tasks:
                self._set(ref, LoadStatus.PENDING, "Fetching", "")
                self._tasks[ref] = asyncio.create_task(self._bring(ref), name=f"fetch-{ref.version}")

    def states(self) -> list[VersionState]:
        """One for each wanted version, in the plan's order."""
        return [self.state(ref) for ref in self._wanted]

    def state(self, ref: VersionRef) -> VersionState:
        """How far we are with a version."""
        known = self._refused.get(ref) or self._states.get(ref)
        return known or VersionState(ref=ref, status=LoadStatus.PENDING, reason="Fetching")

    def directory(self, ref: VersionRef) -> Path | None:
        """Where a version's verified files are; None while they are not here, or when the version was refused."""
        if self.state(ref).status not in (LoadStatus.FETCHED, LoadStatus.LOADED):
            return None
        return self._path(ref)

    def mark_loaded(self, ref: VersionRef) -> None:
        """The engine accepted the version."""
        if self.state(ref).status is not LoadStatus.LOADED:
            self._set(ref, LoadStatus.LOADED, "", "")

    def refuse(self, ref: VersionRef, reason: str, message: str) -> None:
        """Never to be loaded or fetched again; survives a restart of the agent."""
        log.error("version %d (%s) is refused: %s: %s", ref.version, ref.sha256[:12], reason, message)
        state = VersionState(ref=ref, status=LoadStatus.REFUSED, reason=reason, message=message)
        self._refused[ref] = state
        self._journal.save_refusals(list(self._refused.values()))

    async def close(self) -> None:
        """Stop fetching; what is half done is resumed by the next agent."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _path(self, ref: VersionRef) -> Path:
        return self._root / f"{ref.version:06d}-{ref.sha256[:12]}"

    def _set(self, ref: VersionRef, status: LoadStatus, reason: str, message: str) -> None:
        self._states[ref] = VersionState(ref=ref, status=status, reason=reason, message=message)

    async def _bring(self, ref: VersionRef) -> None:
        wait = _FIRST_RETRY_SECONDS
        while ref in self._wanted:
            try:
                await asyncio.to_thread(self._fetch, ref)
                self._set(ref, LoadStatus.FETCHED, "", "")
                for name in await asyncio.to_thread(self._bound_disk, set(self._wanted)):
                    self._forget(name)
                return
            except CorruptObjectError as error:
                self.refuse(ref, error.reason, str(error))
                return
            except (StoreError, OSError) as error:
                reason = error.reason if isinstance(error, StoreError) else "DiskError"
                message = f"{error}; trying again in {wait:.0f} s"
                log.warning("version %d cannot be fetched: %s", ref.version, message)
                self._set(ref, LoadStatus.PENDING, reason, message)
            await self._clock.wait(self._never, wait)
            wait = min(2 * wait, _LAST_RETRY_SECONDS)

    def _fetch(self, ref: VersionRef) -> None:
        """In a thread. What was verified before a restart is verified again here, and needs no store."""
        path = self._path(ref)
        manifest = self._stored_manifest(ref)
        if manifest is None or not verified(path, manifest.files):
            manifest = self._ledger.read_manifest(ref.version)
            if manifest.sha256 != ref.sha256:
                raise CorruptObjectError(
                    f"the plan wants version {ref.version} with weights {ref.sha256}, the ledger's manifest says "
                    f"{manifest.sha256}"
                )
            self._ledger.fetch(ref.version, path)
            write_atomically(self._manifest_path(ref), encode_manifest(manifest))
        path.touch()

    def _manifest_path(self, ref: VersionRef) -> Path:
        path = self._path(ref)
        return path.with_name(path.name + ".manifest.json")

    def _stored_manifest(self, ref: VersionRef) -> Manifest | None:
        try:
            manifest = Manifest.model_validate_json(self._manifest_path(ref).read_bytes())
        except (OSError, ValidationError):
            return None  # Not here, or of another release: the ledger's is read.
        return manifest if manifest.sha256 == ref.sha256 else None

    def _forget(self, name: str) -> None:
        self._states = {ref: state for ref, state in self._states.items() if self._path(ref).name != name}

    def _bound_disk(self, wanted: set[VersionRef]) -> list[str]:
        """In a thread: remove the versions that were wanted longest ago, beyond `keep` and those in use."""
        in_use = {self._path(ref).name for ref in wanted}
        others = [path for path in self._root.iterdir() if _DIRECTORY.match(path.name) and path.name not in in_use]
        others.sort(key=lambda path: path.stat().st_mtime)
        gone = others[: max(0, len(others) - self._keep)]
        for path in gone:
            path.with_name(path.name + ".manifest.json").unlink(missing_ok=True)
            shutil.rmtree(path)
        return [path.name for path in gone]
