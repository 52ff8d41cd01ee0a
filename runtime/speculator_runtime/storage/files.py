"""Sets of files below one key prefix, brought to a directory whole or not at all."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from speculator_runtime.contracts.ledger import FileEntry

from .errors import CorruptObjectError
from .objects import FileDigest, ObjectStore, digest_file


def fetch_files(store: ObjectStore, prefix: str, files: Mapping[str, FileEntry], destination: Path) -> None:
    """Bring `files` (name -> digest) from below `prefix` to the directory `destination`.

    Downloads go to a hidden directory beside it, which is renamed when everything verified: a reader never sees half
    a version. A destination that verifies is kept, one that does not is replaced. Raises StoreError's subclasses.
    """
    for name in files:
        if "/" in name or name in {"", ".", ".."} or name.startswith("."):
            raise CorruptObjectError(f"the manifest below {prefix} lists a file called {name!r}: names are plain")
    if verified(destination, files):
        return
    staging = destination.with_name(f".{destination.name}.partial")
    staging.mkdir(parents=True, exist_ok=True)
    for name, entry in sorted(files.items()):
        path = staging / name
        if path.exists() and digest_file(path) == FileDigest(entry.size, entry.sha256):
            continue
        store.download(f"{prefix}/{name}", path, size=entry.size, sha256=entry.sha256)
    for path in staging.iterdir():
        if path.name not in files:
            path.unlink()
    if destination.exists():
        shutil.rmtree(destination)
    staging.rename(destination)
    sync_directory(destination.parent)


def verified(directory: Path, files: Mapping[str, FileEntry]) -> bool:
    """Whether a directory holds all `files` with their sizes and digests (sizes are looked at first)."""
    paths = {name: directory / name for name in files}
    if not all(path.is_file() and path.stat().st_size == files[name].size for name, path in paths.items()):
        return False
    return all(digest_file(path).sha256 == files[name].sha256 for name, path in paths.items())


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
