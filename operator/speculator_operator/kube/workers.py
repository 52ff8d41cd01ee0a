"""One worker per Speculator: events wake it, wakes in between coalesce, and it comes back by itself after a while.

Level-triggered: a wake carries no content, only 'look again'. A pass that fails is repeated with exponential back-off.
The number of passes at once is bounded; one slow Speculator delays only itself.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

logger = logging.getLogger(__name__)


class Key(NamedTuple):
    """Which Speculator."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Again:
    """Come back after so many seconds; None ends the worker (the object is gone)."""

    seconds: float | None


@dataclass
class _Worker:
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    due: float = 0.0
    """Monotonic time at which the pass that runs or waits should have begun."""


class Workers:
    """The set of workers. `failed` hears of every pass that raised, and says what it was called (a metric's label)."""

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[Again]],
        *,
        failed: Callable[[Key, Exception], None],
        concurrent: int = 16,
        backoff_first: float = 1.0,
        backoff_limit: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reconcile = reconcile
        self._failed = failed
        self._slots = asyncio.Semaphore(concurrent)
        self._backoff = (backoff_first, backoff_limit)
        self._monotonic = monotonic
        self._workers: dict[Key, _Worker] = {}
        self.last_success = monotonic()

    def wake(self, key: Key) -> None:
        """Look at this Speculator now; starts its worker if there is none."""
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = _Worker(due=self._monotonic())
            worker.wake.set()
            worker.task = asyncio.create_task(self._run(key, worker), name=f"speculator {key}")
        elif not worker.wake.is_set():
            worker.due = min(worker.due, self._monotonic())
            worker.wake.set()

    def known(self) -> list[Key]:
        """The Speculators that have a worker."""
        return list(self._workers)

    def overdue_seconds(self) -> float:
        """For how long the most belated worker has owed a pass; 0 when all are in time."""
        now = self._monotonic()
        return max((now - worker.due for worker in self._workers.values() if worker.due < now), default=0.0)

    async def stop(self) -> None:
        """Cancel all workers and wait for them."""
        workers, self._workers = self._workers, {}
        tasks = [worker.task for worker in workers.values() if worker.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: Key, worker: _Worker) -> None:
        failures = 0
        while True:
            worker.wake.clear()
            async with self._slots:
                again, failures = await self._pass(key, failures)
            if again.seconds is None and not worker.wake.is_set():
                if self._workers.get(key) is worker:
                    del self._workers[key]
                return
            pause = again.seconds if again.seconds is not None else 0.0
            worker.due = self._monotonic() + (0.0 if worker.wake.is_set() else pause)
            try:
                async with asyncio.timeout(pause):
                    await worker.wake.wait()
            except TimeoutError:
                pass

    async def _pass(self, key: Key, failures: int) -> tuple[Again, int]:
        try:
            again = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - the boundary of a worker: reported, counted, repeated
            self._failed(key, error)
            first, limit = self._backoff
            pause = min(limit, first * 2**failures) * random.uniform(0.8, 1.2)
            return Again(pause), min(failures + 1, 16)
        self.last_success = self._monotonic()
        return again, 0
