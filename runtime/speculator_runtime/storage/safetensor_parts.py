"""Take a few tensors out of safetensors files by byte ranges, without reading the rest and without torch.

Format: 8 bytes little-endian header length, JSON header (name -> dtype, shape, data_offsets), then the data.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CorruptObjectError

RangeReader = Callable[[int, int], bytes]
"""`(start, length) -> bytes` of one file; raises StoreError's subclasses."""

_MAX_HEADER = 100 << 20
_CHUNK = 32 << 20
# What the trainer needs of a target: input embedding, final norm and output head (absent when tied).
_WANTED = {
    "embedding": re.compile(r"^(?:.*\.)?embed_tokens\.weight$"),
    "norm": re.compile(r"^(?:model\.|language_model\.)*norm\.weight$"),
    "head": re.compile(r"^(?:.*\.)?lm_head\.weight$"),
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor's place: `start` and `size` in bytes from the beginning of the file."""

    dtype: str
    shape: list[int]
    start: int
    size: int


def read_header(name: str, size: int, read: RangeReader) -> dict[str, TensorEntry]:
    """Tensors of a file of `size` bytes. Raises CorruptObjectError when it is truncated or not safetensors."""
    if size < 8:
        raise CorruptObjectError(f"{name} has {size} bytes: it is no safetensors file, or it is truncated")
    length = int.from_bytes(read(0, 8), "little")
    if length > min(_MAX_HEADER, size - 8):
        raise CorruptObjectError(
            f"{name} has {size} bytes but claims a header of {length}: truncated, or no safetensors"
        )
    try:
        header: dict[str, Any] = json.loads(read(8, length))
        entries = {
            tensor: TensorEntry(
                entry["dtype"],
                entry["shape"],
                8 + length + entry["data_offsets"][0],
                entry["data_offsets"][1] - entry["data_offsets"][0],
            )
            for tensor, entry in header.items()
            if tensor != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CorruptObjectError(f"{name}: its safetensors header cannot be read ({error})") from error
    end = max((entry.start + entry.size for entry in entries.values()), default=0)
    if end > size:
        raise CorruptObjectError(f"{name} is truncated: its header says {end} bytes, it has {size}; upload it again")
    return entries


def wanted_tensors(names: Iterable[str], where: str) -> list[str]:
    """Of a checkpoint's tensor names, those the trainer needs. Raises CorruptObjectError when one is missing."""
    names = list(names)
    found = {role: [name for name in names if pattern.match(name)] for role, pattern in _WANTED.items()}
    missing = [role for role in ("embedding", "norm") if not found[role]]
    if missing:
        raise CorruptObjectError(
            f"{where} has no tensor for {' and '.join(missing)} (looked for embed_tokens.weight and norm.weight among "
            f"{len(names)} tensors): only Llama-family checkpoints are supported"
        )
    return sorted(name for group in found.values() for name in group)


def copy_tensors(parts: list[tuple[str, TensorEntry, RangeReader]], destination: Path) -> int:
    """Write the tensors (name, place, reader of their file) as one safetensors file; returns its bytes.

    The file appears when it is complete.
    """
    header, offset = {}, 0
    for name, entry, _ in parts:
        header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [offset, offset + entry.size]}
        offset += entry.size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = destination.with_name(destination.name + ".part")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, entry, read in parts:
            for start in range(0, entry.size, _CHUNK):
                file.write(read(entry.start + start, min(_CHUNK, entry.size - start)))
    partial.replace(destination)
    return 8 + len(text) + offset
