"""Where a trainer starts from: the newest checkpoint on disk, else in S3, else the newest version, else its settings.

Whatever it starts from, the ledger has the last word on what was published: a version that is there is never published
again, and the next one names the newest as its parent.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from speculator_runtime.contracts.control import RefusalReason
from speculator_runtime.contracts.settings import TrainerSettings
from speculator_runtime.drafter.checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Checkpoint,
    CheckpointRefused,
    read_checkpoint,
)
from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.storage import Ledger, StoredManifest, fetch_checkpoint
from speculator_runtime.storage import read_checkpoint as read_pointer
from speculator_runtime.storage.sources import open_source

from .counters import Progress
from .learner import Learner
from .resume import ResumeError, ResumeState, newest_state, read_state

log = logging.getLogger(__name__)


@dataclass
class Lineage:
    """What a trainer continues."""

    learner: Learner
    progress: Progress
    sequence: int  # of the last checkpoint
    extra: dict[str, object]  # the trainer's own scalars of that checkpoint
    origin: str  # in words, for the log and the status


def open_lineage(
    settings: TrainerSettings,
    config: DrafterConfig,
    ledger: Ledger,
    make_learner: Callable[[Checkpoint | None], Learner],
) -> Lineage:
    """The state to go on from. Raises StoreError's subclasses, and CheckpointRefused or OSError for `init_from`."""
    work = Path(settings.work_directory)
    state = newest_state(work / "checkpoints") or _remote_state(ledger, work)
    lineage = _restored(state, config, make_learner) if state is not None else None
    if lineage is None:
        start, origin = _start(settings, config, ledger, work)
        lineage = Lineage(make_learner(start), Progress(), state.sequence if state else 0, {}, origin)
    _catch_up(ledger, lineage.progress, lineage.learner.step)
    return lineage


def _remote_state(ledger: Ledger, work: Path) -> ResumeState | None:
    pointer = read_pointer(ledger)
    if pointer is None:
        return None
    log.info("no checkpoint on disk: fetching %s from S3", pointer.id)
    folder = work / "fetched-checkpoint"
    try:
        fetch_checkpoint(ledger, folder)
        return read_state(folder)
    except ResumeError as error:
        log.warning("the checkpoint in S3 cannot be used: %s", error)
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _restored(
    state: ResumeState, config: DrafterConfig, make_learner: Callable[[Checkpoint | None], Learner]
) -> Lineage | None:
    """The learner of a checkpoint; None (and a warning) when it belongs to other drafter settings."""
    learner = make_learner(None)
    try:
        learner.restore(state.tensors, state.scalars["learner"])
        progress = Progress.from_json(state.scalars["progress"])
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        log.warning("checkpoint %d is of another drafter (%s): it is left aside", state.sequence, error)
        return None
    return Lineage(
        learner,
        progress,
        state.sequence,
        state.scalars.get("trainer", {}),
        f"checkpoint {state.sequence}, step {learner.step}",
    )


def _start(
    settings: TrainerSettings, config: DrafterConfig, ledger: Ledger, work: Path
) -> tuple[Checkpoint | None, str]:
    """Weights to start from without a checkpoint: the newest version that fits, else `init_from`, else random."""
    newest = _newest(ledger)
    if newest is not None:
        folder = work / "fetched-version"
        try:
            ledger.fetch(newest.manifest.version, folder)
            return read_checkpoint(folder, config, newest.manifest.sha256), f"version {newest.manifest.version}"
        except CheckpointRefused as error:
            log.warning("version %d is of another drafter: %s", newest.manifest.version, error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    source = settings.drafter.init_from
    if source is None:
        return None, f"random weights, seed {settings.drafter.init_seed}"
    if not source.startswith("s3://"):
        return read_checkpoint(Path(source), config), source
    folder = work / "init"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        remote = open_source(source, settings.store)
        found = remote.files()
        for name in (WEIGHTS_FILE, CONFIG_FILE):
            if name not in found:
                raise CheckpointRefused(
                    RefusalReason.MISSING,
                    f"{source} holds {sorted(found)} but no {name}; point drafter.init_from at a drafter checkpoint",
                )
            remote.download(name, folder / name)
        return read_checkpoint(folder, config), source
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _newest(ledger: Ledger) -> StoredManifest | None:
    versions = ledger.list_versions()
    return ledger.read_stored(versions[-1].version) if versions else None


def _catch_up(ledger: Ledger, progress: Progress, step: int) -> None:
    """Take note of versions that were published after the checkpoint was written."""
    known = progress.latest.version if progress.latest else 0
    for manifest in ledger.list_versions(after=known):
        stored = ledger.read_stored(manifest.version)
        log.info("version %d was published after the checkpoint: it is the parent of the next", manifest.version)
        progress.published_as(stored.ref, stored.sha256, step)
