"""A clock that jumps and an engine that counts by it, for what depends on timing alone.

Everything else about an engine is tested with the real one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from speculator_runtime.agent.engine import DrafterRefusedError, EngineUnavailableError
from speculator_runtime.contracts.control import (
    BucketCounters,
    DecodeMode,
    DraftShape,
    EngineState,
    EngineStats,
    LoadDrafter,
    RefusalReason,
    SetMode,
)
from speculator_runtime.contracts.plan import LoadStatus, VersionRef, VersionState


class SimulationEnded(BaseException):
    """The simulated time is over. Nothing but the test catches it."""


class SimulatedClock:
    """Waiting takes no time. Events planned with `at` happen on the way; at `end` the waiter gets SimulationEnded."""

    def __init__(self, end: float, start: float = 1000.0) -> None:
        self.now = start
        self.end = start + end
        self._start = start
        self._planned: list[tuple[float, Callable[[], None]]] = []

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something so many seconds after the start."""
        self._planned.append((self._start + seconds, action))
        self._planned.sort(key=lambda entry: entry[0])

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        until = min(self.now + seconds, self.end)
        await asyncio.sleep(0)
        while not event.is_set() and self._planned and self._planned[0][0] <= until:
            when, action = self._planned.pop(0)
            self.now = max(self.now, when)
            action()
        if event.is_set():
            return True
        self.now = until
        if self.now >= self.end:
            raise SimulationEnded
        return False


STEPS_PER_SECOND = 100


@dataclass
class SimulatedEngine:
    """One decode step every 10 ms in bucket 4; speculative steps commit two tokens a sequence, others one."""

    clock: SimulatedClock
    epoch: str = "epoch-0"
    state_now: EngineState = field(
        default_factory=lambda: EngineState(
            engine="simulated/1",
            healthy=True,
            mode=DecodeMode.TARGET_ONLY,
            shape=DraftShape(),
            version=0,
            sha256="",
            live_digest="",
            target_digest="t" * 64,
        )
    )
    refuses: dict[str, RefusalReason] = field(default_factory=dict)
    away: bool = False
    calls: list[str] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self._began = self._until = self.clock.now

    def restart(self) -> None:
        """As after a crash: target-only, day-0 drafter, counters at zero."""
        self.epoch += "+"
        self.state_now = self.state_now.model_copy(
            update={"mode": DecodeMode.TARGET_ONLY, "version": 0, "sha256": "", "shape": DraftShape()}
        )
        self.steps = self.tokens = 0
        self._until = self.clock.now

    async def state(self) -> EngineState:
        self._answer()
        return self.state_now

    async def load(self, drafter: LoadDrafter) -> EngineState:
        self._answer()
        self.calls.append(f"load {drafter.version}")
        if drafter.sha256 in self.refuses:
            raise DrafterRefusedError(self.refuses[drafter.sha256], "as told")
        self.state_now = self.state_now.model_copy(update={"version": drafter.version, "sha256": drafter.sha256})
        return self.state_now

    async def set_mode(self, mode: SetMode) -> EngineState:
        self._answer()
        self.calls.append(mode.mode.value)
        self.state_now = self.state_now.model_copy(
            update={
                "mode": mode.mode,
                "shape": mode.shape or self.state_now.shape,
                "target_only_above": mode.target_only_above,
            }
        )
        return self.state_now

    async def stats(self) -> EngineStats:
        self._answer()
        counters = BucketCounters(
            steps=self.steps, sequences=4 * self.steps, tokens=self.tokens, seconds=self.steps / STEPS_PER_SECOND
        )
        return EngineStats(epoch=self.epoch, monotonic_seconds=self.clock.now, buckets={4: counters})

    async def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self.away:
            raise EngineUnavailableError("no answer")
        steps = round((self.clock.now - self._until) * STEPS_PER_SECOND)
        self._until += steps / STEPS_PER_SECOND
        self.steps += steps
        self.tokens += steps * 4 * (2 if self.state_now.mode is DecodeMode.SPECULATIVE else 1)


@dataclass
class VersionsOnDisk:
    """Every wanted version is there, but for those in `pending`."""

    pending: set[VersionRef] = field(default_factory=set)
    refused: dict[VersionRef, str] = field(default_factory=dict)
    loaded: set[VersionRef] = field(default_factory=set)
    wanted: list[VersionRef] = field(default_factory=list)

    def want(self, refs: list[VersionRef]) -> None:
        self.wanted = refs

    def state(self, ref: VersionRef) -> VersionState:
        if ref in self.refused:
            return VersionState(ref=ref, status=LoadStatus.REFUSED, reason=self.refused[ref])
        return VersionState(ref=ref, status=LoadStatus.PENDING if ref in self.pending else LoadStatus.FETCHED)

    def directory(self, ref: VersionRef) -> Path | None:
        return None if ref in self.refused or ref in self.pending else Path(f"/versions/{ref.version}")

    def mark_loaded(self, ref: VersionRef) -> None:
        self.loaded.add(ref)

    def refuse(self, ref: VersionRef, reason: str, message: str) -> None:
        self.refused[ref] = reason
