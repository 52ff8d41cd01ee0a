"""The trainer's checkpoints: everything a killed trainer needs to go on, on disk and in S3. No pickle.

    <directory>/state-<sequence>/{state.safetensors,state.json}

A set is written beside its place and renamed, so that it is whole or absent; the newest whole one counts, and the one
before is kept until the next is there. S3 holds a copy (storage.checkpoints) for pods that lost their volume.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from speculator_runtime.storage.files import sync_directory

_TENSORS = "state.safetensors"
_SCALARS = "state.json"
_SCHEMA = 1


class ResumeError(Exception):
    """A checkpoint cannot be used; the message says what to do."""


@dataclass(frozen=True)
class ResumeState:
    """A trainer's state. `sequence` grows with every checkpoint of a lineage."""

    sequence: int
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]


def write_state(directory: Path, state: ResumeState, keep: Path | None = None) -> Path:
    """Write a checkpoint below `directory` and remove those older than the one before it; returns its folder.

    keep: a folder that is being read and stays.
    """
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / f"state-{state.sequence:08d}"
    making = directory / f".{final.name}.partial"
    for stale in (making, final):
        if stale.exists():
            shutil.rmtree(stale)
    making.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.tensors.items()}, making / _TENSORS)
    with (making / _TENSORS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    content = {"schema_version": _SCHEMA, "sequence": state.sequence, "sha256": digest, "scalars": state.scalars}
    (making / _SCALARS).write_text(json.dumps(content, sort_keys=True, indent=1))
    for name in (_TENSORS, _SCALARS):
        with (making / name).open("rb") as file:
            os.fsync(file.fileno())
    making.rename(final)
    sync_directory(directory)
    for old in _folders(directory)[:-2]:
        if old != keep:
            shutil.rmtree(old)
    return final


def read_state(folder: Path) -> ResumeState:
    """Read one checkpoint folder, digest checked; raises ResumeError."""
    try:
        content = json.loads((folder / _SCALARS).read_text())
        with (folder / _TENSORS).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if content["schema_version"] != _SCHEMA:
            raise ResumeError(
                f"{folder} has schema version {content['schema_version']}, this trainer reads {_SCHEMA}; run the "
                "release that wrote it, or remove it to start afresh"
            )
        if content["sha256"] != digest:
            raise ResumeError(f"{folder / _TENSORS} has sha256 {digest}, expected {content['sha256']}: it is damaged")
        with safe_open(folder / _TENSORS, framework="pt") as tensors:
            state = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (no mapping)
        return ResumeState(int(content["sequence"]), state, content["scalars"])
    except (OSError, KeyError, ValueError, TypeError, SafetensorError) as error:
        raise ResumeError(f"{folder} is not a whole checkpoint: {error}") from error


def newest_state(directory: Path) -> ResumeState | None:
    """The newest checkpoint below `directory` that reads whole; None if there is none. Damaged ones are passed over."""
    for folder in reversed(_folders(directory)):
        try:
            return read_state(folder)
        except ResumeError:
            continue
    return None


def _folders(directory: Path) -> list[Path]:
    return sorted(directory.glob("state-*")) if directory.is_dir() else []
