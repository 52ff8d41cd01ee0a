"""Makes the engine follow the plan: blocks of the schedule, the resting arm between them, target-only when in doubt.

The only part that changes the engine. It decides nothing about versions; what it measured goes to the journal.
If the agent dies the engine keeps its last mode and drafter; the next agent takes up plan and schedule where they were.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from speculator_runtime.contracts.control import DecodeMode, EngineState, EngineStats, LoadDrafter, SetMode
from speculator_runtime.contracts.plan import Arm, Block, Plan, VersionRef, VersionState

from .accounting import Replica, invalid_block, measured_block
from .clock import Clock
from .engine import DrafterRefusedError, Engine, EngineUnavailableError
from .journal import Journal
from .schedule import Slot, slot

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
"""Between looks at the engine while an arm rests, and between tries while it is away."""
LOOK_SECONDS = 5.0
"""Between looks at the engine inside a block."""


class Versions(Protocol):
    """What the runner needs of `versions.VersionStore`."""

    def want(self, refs: "list[VersionRef]") -> None:
        """Keep these on disk."""
        ...

    def state(self, ref: VersionRef) -> VersionState:
        """How far a version is."""
        ...

    def directory(self, ref: VersionRef) -> object | None:
        """Its files, when they are here and not refused."""
        ...

    def mark_loaded(self, ref: VersionRef) -> None:
        """The engine accepted it."""
        ...

    def refuse(self, ref: VersionRef, reason: str, message: str) -> None:
        """The engine refused it."""
        ...


@dataclass(frozen=True)
class Applied:
    """What the runner last made the engine do."""

    arm: Arm = Arm.TARGET_ONLY
    version: VersionRef | None = None


class Runner:
    """Runs one replica's plan. Use from one event loop."""

    def __init__(
        self,
        replica: Replica,
        engine: Engine,
        versions: Versions,
        journal: Journal,
        clock: Clock,
        on_block: Callable[[bool, Arm], None] = lambda valid, arm: None,
        on_load: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._replica = replica
        self._engine = engine
        self._versions = versions
        self._journal = journal
        self._clock = clock
        self._on_block = on_block
        self._on_load = on_load
        self._plan_changed = asyncio.Event()
        self.plan: Plan | None = journal.load_plan()
        self.applied = Applied()
        self.engine_state: EngineState | None = None
        self.engine_stats: EngineStats | None = None
        self.engine_error = "not asked yet"
        self.last_error = ""
        self.heartbeat = clock.monotonic()
        self._want()

    @property
    def blocks_until(self) -> int:
        """Highest block index of the plan in force."""
        return self._journal.last_index(self.plan.generation) if self.plan else -1

    def adopt(self, plan: Plan) -> None:
        """Follow another plan from now on; returns when it is on disk. The block under way is given up as invalid."""
        self._journal.save_plan(plan)
        self.plan = plan
        self.last_error = ""
        self._want()
        self._plan_changed.set()

    def _want(self) -> None:
        if self.plan is not None:
            self._versions.want([ref for ref in (self.plan.stable, self.plan.candidate) if ref is not None])

    async def run(self) -> None:
        """Until cancelled. An engine that is away is waited for."""
        while True:
            self._plan_changed.clear()
            self.heartbeat = self._clock.monotonic()
            plan = self.plan
            try:
                await self._follow(plan)
            except EngineUnavailableError as error:
                self._engine_away(error)
                await self._clock.wait(self._plan_changed, POLL_SECONDS)

    def _engine_away(self, error: EngineUnavailableError) -> None:
        if not self.engine_error:
            log.warning("the engine is away: %s", error)
        self.engine_error = str(error)

    async def _follow(self, plan: Plan | None) -> None:
        """One step: a block with its rest, or a moment of rest."""
        due = slot(plan, self._journal.next_index(plan.generation)) if plan else None
        if plan is None or due is None or not self._ready(plan):
            await self._rest(plan, POLL_SECONDS)
            return
        await self._run_block(plan, due)
        if due.last and plan.switchback is not None:
            end = self._clock.monotonic() + plan.switchback.rest_seconds
            while not self._plan_changed.is_set() and (left := end - self._clock.monotonic()) > 0:
                await self._rest(plan, min(left, POLL_SECONDS))

    def _ready(self, plan: Plan) -> bool:
        """Whether every arm of the schedule can run: comparing needs all of them."""
        arms = plan.switchback.arms if plan.switchback else ()
        refs = [_version(plan, arm) for arm in arms]
        return all(ref is None or self._versions.directory(ref) is not None for ref in refs)

    # Resting

    async def _rest(self, plan: Plan | None, seconds: float) -> None:
        """Keep the resting arm applied for a while; target-only while its version is not usable."""
        arm = plan.resting_arm if plan else Arm.TARGET_ONLY
        ref = _version(plan, arm) if plan else None
        if ref is not None and self._versions.directory(ref) is None:
            arm = Arm.TARGET_ONLY
        try:
            await self._apply(plan, arm)
        except DrafterRefusedError:
            await self._apply(plan, Arm.TARGET_ONLY)
        self.engine_stats = await self._engine.stats()
        self.heartbeat = self._clock.monotonic()
        await self._clock.wait(self._plan_changed, seconds)

    # Blocks

    async def _run_block(self, plan: Plan, due: Slot) -> None:
        """One block into the journal. An engine that is away before it began costs no block, only time."""
        ref = _version(plan, due.arm)
        try:
            await self._apply(plan, due.arm)
        except DrafterRefusedError as error:
            reason = f"the engine refused the drafter: {error}"
            self._emit(invalid_block(self._replica, plan.generation, due, ref, self._clock.time(), reason))
            return
        started = self._clock.time()
        try:
            block = await self._measure(plan, due, ref)
        except EngineUnavailableError as error:
            self._emit(invalid_block(self._replica, plan.generation, due, ref, started, f"the engine is away: {error}"))
            raise
        self._emit(block)

    async def _measure(self, plan: Plan, due: Slot, ref: VersionRef | None) -> Block:
        """Wait for the washout, read, wait for the rest, read again."""
        assert plan.switchback is not None
        washout = plan.switchback.washout_seconds
        started = self._clock.time()
        changed = await self._wait(washout)
        if not changed:
            started = self._clock.time()
            before = await self._engine.stats()
            changed = await self._wait(plan.switchback.block_seconds - washout)
        if changed:
            return invalid_block(self._replica, plan.generation, due, ref, started, "the plan changed")
        after = self.engine_stats = await self._engine.stats()
        state = await self._look()
        if before.epoch == after.epoch and not _runs(state, plan, due.arm, ref):
            reason = f"the engine ended in mode {state.mode} with version {state.version}"
            return invalid_block(self._replica, plan.generation, due, ref, started, reason)
        return measured_block(self._replica, plan.generation, due, ref, started, before, after)

    async def _wait(self, seconds: float) -> bool:
        """Wait inside a block; True when the plan changed. Looks at the engine now and then, and says we are alive."""
        end = self._clock.monotonic() + seconds
        while (left := end - self._clock.monotonic()) > 0:
            self.heartbeat = self._clock.monotonic()
            if await self._clock.wait(self._plan_changed, min(left, LOOK_SECONDS)):
                return True
            if left > LOOK_SECONDS:
                await self._look()
        return self._plan_changed.is_set()

    def _emit(self, block: Block) -> None:
        self._journal.append(block)
        self._on_block(block.valid, block.arm)

    # The engine

    async def _look(self) -> EngineState:
        state = await self._engine.state()
        if self.engine_error:
            log.info("the engine answers: %s, version %d, %s", state.engine, state.version, state.mode)
        self.engine_state, self.engine_error = state, ""
        return state

    async def _apply(self, plan: Plan | None, arm: Arm) -> None:
        """Make the engine run an arm, with as few calls as it takes. Raises DrafterRefusedError (and notes it)."""
        ref = _version(plan, arm) if plan else None
        state = await self._look()
        if _runs(state, plan, arm, ref):
            self.applied = Applied(arm, ref)
            return
        if ref is not None and state.sha256 != ref.sha256:
            state = await self._load(ref)
        mode = _mode(plan, arm)
        if not _runs(state, plan, arm, ref):
            state = await self._engine.set_mode(mode)
        self.engine_state = state
        self.applied = Applied(arm, ref)
        log.info("arm %s, version %s", arm, ref.version if ref else None)

    async def _load(self, ref: VersionRef) -> EngineState:
        directory = self._versions.directory(ref)
        if directory is None:
            raise EngineUnavailableError(f"version {ref.version} is not on disk: {self._versions.state(ref).message}")
        began = self._clock.monotonic()
        try:
            state = await self._engine.load(
                LoadDrafter(version=ref.version, directory=str(directory), sha256=ref.sha256)
            )
        except DrafterRefusedError as error:
            self._versions.refuse(ref, error.reason.value, str(error))
            self.last_error = f"version {ref.version}: {error.reason}: {error}"
            raise
        self._on_load(self._clock.monotonic() - began)
        self._versions.mark_loaded(ref)
        return state


def _version(plan: Plan, arm: Arm) -> VersionRef | None:
    """The drafter an arm needs; None for target-only."""
    return {Arm.TARGET_ONLY: None, Arm.STABLE: plan.stable, Arm.CANDIDATE: plan.candidate}[arm]


def _mode(plan: Plan | None, arm: Arm) -> SetMode:
    mode = DecodeMode.TARGET_ONLY if arm is Arm.TARGET_ONLY else DecodeMode.SPECULATIVE
    return SetMode(
        mode=mode, shape=plan.shape if plan else None, target_only_above=plan.target_only_above if plan else None
    )


def _runs(state: EngineState, plan: Plan | None, arm: Arm, ref: VersionRef | None) -> bool:
    """Whether the engine is doing exactly what an arm asks. Target-only does not care which drafter is loaded."""
    mode = _mode(plan, arm)
    return (
        state.mode is mode.mode
        and (mode.shape is None or state.shape == mode.shape)
        and state.target_only_above == mode.target_only_above
        and (ref is None or state.sha256 == ref.sha256)
    )
