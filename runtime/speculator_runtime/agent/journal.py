"""What the agent must not forget when it restarts: its plan, the blocks it emitted, the versions that were refused.

Files below `work_directory/agent` (an emptyDir: it lives as long as the pod, and so does the pod's uid). A block counts
as emitted when its line is on disk; only then can anybody read it, so an index is never used for two blocks.
"""

import json
import logging
import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from speculator_runtime.contracts.plan import Block, Plan, VersionState
from speculator_runtime.contracts.settings import canonical_json

log = logging.getLogger(__name__)
KEEP_GENERATIONS = 20
KEEP_BLOCKS = 20_000
"""Blocks kept of one generation; when there are more, the oldest half goes, and is counted if nobody read it."""

_refusals = TypeAdapter(list[VersionState])


class Journal:
    """One agent's files. Not thread-safe."""

    def __init__(self, work_directory: Path, pod_uid: str) -> None:
        """Raises OSError when the directory cannot be written."""
        self._root = work_directory / "agent"
        self._blocks_root = self._root / "blocks" / (pod_uid or "pod")
        self._blocks_root.mkdir(parents=True, exist_ok=True)
        self._blocks: dict[int, list[Block]] = {}
        self._read_until: dict[int, int] = {}
        self.blocks_lost_unread = 0

    # The plan

    def load_plan(self) -> Plan | None:
        """The plan in force when the agent ended; None without one."""
        path = self._root / "plan.json"
        try:
            return Plan.model_validate_json(path.read_text())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            # Written by another release: the operator sends its plan again within seconds.
            log.error("the stored plan %s cannot be read (%s); waiting for the operator's", path, error)
            return None

    def save_plan(self, plan: Plan) -> None:
        """Keep a plan; returns when it is on disk."""
        write_atomically(self._root / "plan.json", canonical_json(plan).encode())

    # Refusals

    def load_refusals(self) -> list[VersionState]:
        """Versions that were refused for good."""
        try:
            return _refusals.validate_json((self._root / "refused.json").read_bytes())
        except FileNotFoundError:
            return []
        except ValidationError as error:
            log.error("the stored refusals cannot be read (%s); the engine is asked again", error)
            return []

    def save_refusals(self, states: list[VersionState]) -> None:
        """Keep the refusals; returns when they are on disk."""
        data = json.dumps([state.model_dump(mode="json") for state in states], indent=2)
        write_atomically(self._root / "refused.json", data.encode())

    # Blocks

    def next_index(self, generation: int) -> int:
        """Index of the next block of a plan generation."""
        return self.last_index(generation) + 1

    def last_index(self, generation: int) -> int:
        """Highest index emitted in a generation; -1 for none."""
        blocks = self._load(generation)
        return blocks[-1].index if blocks else -1

    def append(self, block: Block) -> None:
        """Emit a block; returns when it is on disk. Raises ValueError for an index that was used."""
        blocks = self._load(block.generation)
        if block.index <= self.last_index(block.generation):
            raise ValueError(f"block {block.index} of generation {block.generation} was emitted already")
        with self._path(block.generation).open("ab") as file:
            file.write(canonical_json(block).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        blocks.append(block)
        if len(blocks) > KEEP_BLOCKS:
            self._drop_oldest_half(block.generation)
        self._drop_old_generations()

    def read(self, generation: int, after: int) -> list[Block]:
        """Blocks of a generation with an index above `after`, ascending; those up to `after` count as read."""
        self._read_until[generation] = max(after, self._read_until.get(generation, -1))
        return [block for block in self._load(generation) if block.index > after]

    def _path(self, generation: int) -> Path:
        return self._blocks_root / f"{generation:08d}.jsonl"

    def _load(self, generation: int) -> list[Block]:
        if generation not in self._blocks:
            path = self._path(generation)
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) != len(data):
                # A line that was being written when the agent was killed: nobody has read it, its block is lost.
                with path.open("r+b") as file:
                    file.truncate(len(whole))
            self._blocks[generation] = [Block.model_validate_json(line) for line in whole.splitlines()]
        return self._blocks[generation]

    def _drop_oldest_half(self, generation: int) -> None:
        blocks = self._blocks[generation]
        gone, kept = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
        unread = sum(block.index > self._read_until.get(generation, -1) for block in gone)
        if unread:
            self.blocks_lost_unread += unread
            log.error("%d blocks of generation %d were dropped before anybody read them", unread, generation)
        write_atomically(self._path(generation), b"".join(canonical_json(b).encode() + b"\n" for b in kept))
        self._blocks[generation] = kept

    def _drop_old_generations(self) -> None:
        for path in sorted(self._blocks_root.glob("*.jsonl"))[:-KEEP_GENERATIONS]:
            path.unlink()
            self._blocks.pop(int(path.stem), None)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's content so that after a kill or a power cut it is the old or the new one."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
