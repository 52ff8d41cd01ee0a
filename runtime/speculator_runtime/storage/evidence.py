"""Evidence as bytes: the canonical form of blocks, their order and their digest. Pure; no S3 here."""

import hashlib
import re
from collections.abc import Iterable

from pydantic import ValidationError

from speculator_runtime.contracts.plan import Block
from speculator_runtime.contracts.settings import canonical_json

from .errors import CorruptObjectError

BlockKey = tuple[str, int, int]
_PART = re.compile(r"^(\d+)-(.+)-(\d+)\.jsonl$")


def block_key(block: Block) -> BlockKey:
    """`(pod_uid, generation, index)`: what identifies a block, and the order evidence is kept in."""
    return (block.pod_uid, block.generation, block.index)


def part_name(generation: int, pod_uid: str, first: int) -> str:
    """File name of the part that begins with block index `first`."""
    return f"{generation:08d}-{pod_uid}-{first:08d}.jsonl"


def parse_part_name(name: str) -> BlockKey | None:
    """`(pod_uid, generation, first index)` of a part's file name; None if it is not one."""
    match = _PART.match(name)
    return (match[2], int(match[1]), int(match[3])) if match else None


def encode_blocks(blocks: Iterable[Block]) -> bytes:
    """One canonical JSON object a line."""
    return "".join(canonical_json(block) + "\n" for block in blocks).encode()


def decode_blocks(data: bytes, name: str) -> list[Block]:
    """Blocks of a part; raises CorruptObjectError that names the line."""
    blocks = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            blocks.append(Block.model_validate_json(line))
        except ValidationError as error:
            raise CorruptObjectError(
                f"evidence {name}, line {number} is not a block: {error.errors()[0]['msg']}"
            ) from error
    return blocks


def in_order(blocks: Iterable[Block]) -> list[Block]:
    """Sorted by key, each key once. Raises CorruptObjectError when two different blocks claim one key."""
    kept: dict[BlockKey, Block] = {}
    for block in blocks:
        earlier = kept.setdefault(block_key(block), block)
        if earlier != block:
            raise CorruptObjectError(
                f"two different blocks have pod {block.pod_uid}, generation {block.generation}, index {block.index}"
            )
    return [kept[key] for key in sorted(kept)]


def evidence_sha256(blocks: Iterable[Block]) -> str:
    """Digest of a set of blocks, whatever order they come in (`VerdictRecord.evidence_sha256`)."""
    return hashlib.sha256(encode_blocks(in_order(blocks))).hexdigest()
