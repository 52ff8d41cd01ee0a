"""Workers: one pass at a time per Speculator, wakes coalesce, failures back off, nothing blocks the others."""

import asyncio
from collections import Counter

from speculator_operator.kube.workers import Again, Key, Workers

A, B = Key("ns", "a"), Key("ns", "b")


class Recorder:
    """Counts passes; `hold` keeps a pass of that key open."""

    def __init__(self, again: float | None = 60.0) -> None:
        self.passes: Counter[Key] = Counter()
        self.running: Counter[Key] = Counter()
        self.most = 0
        self.again = again
        self.hold: dict[Key, asyncio.Event] = {}
        self.errors: list[tuple[Key, Exception]] = []
        self.fail: set[Key] = set()

    async def __call__(self, key: Key) -> Again:
        self.running[key] += 1
        self.most = max(self.most, self.running[key])
        if key in self.hold:
            await self.hold[key].wait()
        self.running[key] -= 1
        self.passes[key] += 1
        if key in self.fail:
            raise RuntimeError("broken")
        return Again(self.again)

    def failed(self, key: Key, error: Exception) -> None:
        self.errors.append((key, error))


def workers(recorder: Recorder, **options) -> Workers:
    return Workers(recorder, failed=recorder.failed, **options)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_wake_starts_one_pass() -> None:
    recorder = Recorder()
    pool = workers(recorder)
    pool.wake(A)
    await settle()
    assert recorder.passes == {A: 1}
    await pool.stop()


async def test_wakes_during_a_pass_coalesce_into_one_more() -> None:
    recorder = Recorder()
    recorder.hold[A] = asyncio.Event()
    pool = workers(recorder)
    pool.wake(A)
    await settle()
    for _ in range(50):
        pool.wake(A)
    recorder.hold[A].set()
    await settle()
    assert recorder.passes == {A: 2}
    assert recorder.most == 1, "never two passes of one Speculator at once"
    await pool.stop()


async def test_a_pass_comes_back_by_itself() -> None:
    recorder = Recorder(again=0.01)
    pool = workers(recorder)
    pool.wake(A)
    await asyncio.sleep(0.1)
    assert recorder.passes[A] >= 3
    await pool.stop()


async def test_a_stuck_speculator_does_not_hold_up_another() -> None:
    recorder = Recorder()
    recorder.hold[A] = asyncio.Event()
    pool = workers(recorder)
    pool.wake(A)
    pool.wake(B)
    await settle()
    assert recorder.passes == {B: 1}
    await pool.stop()


async def test_a_failing_pass_is_reported_and_repeated_with_growing_pauses() -> None:
    recorder = Recorder()
    recorder.fail.add(A)
    pool = workers(recorder, backoff_first=0.01, backoff_limit=0.04)
    pool.wake(A)
    await asyncio.sleep(0.15)
    assert 3 <= len(recorder.errors) <= 9
    recorder.fail.clear()
    await asyncio.sleep(0.1)
    assert recorder.passes[A] == len(recorder.errors) + 1
    await pool.stop()


async def test_a_worker_whose_object_is_gone_ends_and_can_be_started_again() -> None:
    recorder = Recorder(again=None)
    pool = workers(recorder)
    pool.wake(A)
    await settle()
    assert pool.known() == []
    pool.wake(A)
    await settle()
    assert recorder.passes == {A: 2}


async def test_a_wake_that_comes_while_the_last_pass_ends_is_not_lost() -> None:
    recorder = Recorder(again=None)
    recorder.hold[A] = asyncio.Event()
    pool = workers(recorder)
    pool.wake(A)
    await settle()
    pool.wake(A)
    recorder.hold[A].set()
    await settle()
    assert recorder.passes == {A: 2}


async def test_how_long_a_pass_is_owed_is_known_to_the_watchdog() -> None:
    now = 100.0
    recorder = Recorder(again=30)
    recorder.hold[A] = asyncio.Event()
    pool = workers(recorder, monotonic=lambda: now)
    pool.wake(A)
    await settle()
    now = 150.0
    assert pool.overdue_seconds() == 50.0
    recorder.hold[A].set()
    await settle()
    assert pool.overdue_seconds() == 0.0, "done, and not due again for 30 seconds"
    await pool.stop()


async def test_passes_at_once_are_bounded() -> None:
    recorder = Recorder()
    keys = [Key("ns", f"s{i}") for i in range(10)]
    for key in keys:
        recorder.hold[key] = asyncio.Event()
    pool = workers(recorder, concurrent=3)
    for key in keys:
        pool.wake(key)
    await settle()
    assert sum(recorder.running.values()) == 3
    for event in recorder.hold.values():
        event.set()
    await asyncio.sleep(0.05)
    assert all(recorder.passes[key] == 1 for key in keys)
    await pool.stop()
