"""The trainer's resume state in S3: sets of files, of which one pointer object names the current one.

    checkpoints/ID/FILE...          written first
    checkpoints/current.json        then this; whoever reads it sees a whole set, the old or the new one

One writer: the trainer. The set before the current one is kept until the next put, for a reader that is under way.
"""

import uuid
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from speculator_runtime.contracts.base import VersionedContract
from speculator_runtime.contracts.ledger import FileEntry

from .errors import CorruptObjectError, ObjectNotFoundError
from .files import fetch_files
from .ledger import Ledger, describe_files
from .objects import FileDigest

_POINTER = "checkpoints/current.json"


class CheckpointPointer(VersionedContract):
    """Names the current set of files."""

    id: str
    previous: str = ""
    files: dict[str, FileEntry]
    created: datetime
    labels: dict[str, str] = Field(default_factory=dict, description="The trainer's own, for example its step.")


def put_checkpoint(ledger: Ledger, directory: Path, labels: dict[str, str] | None = None) -> CheckpointPointer:
    """Store the plain files of `directory` as the current checkpoint. Raises StoreError's subclasses."""
    store = ledger.store
    old = read_checkpoint(ledger)
    files = describe_files(directory)
    now = datetime.now(UTC)
    identity = f"{now:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
    for name, entry in files.items():
        store.upload(f"checkpoints/{identity}/{name}", directory / name, FileDigest(entry.size, entry.sha256))
    pointer = CheckpointPointer(
        id=identity, previous=old.id if old else "", files=files, created=now, labels=labels or {}
    )
    store.put(_POINTER, pointer.model_dump_json(indent=2).encode())
    for folder in store.folders("checkpoints/"):
        if folder not in {pointer.id, pointer.previous}:
            for info in store.objects(f"checkpoints/{folder}/"):
                store.delete(info.key)
    return pointer


def read_checkpoint(ledger: Ledger) -> CheckpointPointer | None:
    """The current checkpoint's description; None if there is none."""
    try:
        data = ledger.store.get(_POINTER)
    except ObjectNotFoundError:
        return None
    try:
        return CheckpointPointer.model_validate_json(data)
    except ValidationError as error:
        raise CorruptObjectError(
            f"{_POINTER} in bucket {ledger.settings.bucket!r} is not a checkpoint pointer: {error.errors()[0]['msg']}; "
            "delete it to start training afresh"
        ) from error


def fetch_checkpoint(ledger: Ledger, destination: Path) -> CheckpointPointer | None:
    """Bring the current checkpoint to the directory `destination`, verified; None if there is none."""
    pointer = read_checkpoint(ledger)
    if pointer is not None:
        fetch_files(ledger.store, f"checkpoints/{pointer.id}", pointer.files, destination)
    return pointer
