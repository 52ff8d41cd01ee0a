"""Keep requests in flight: a fixed number, or Poisson arrivals. Knows nothing of HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from .order import poisson_gaps
from .records import Prompt, Record


@dataclass(frozen=True)
class Load:
    """How much to send, and how: `rate` (requests per second, Poisson) if set, else `concurrency` at a time."""

    concurrency: int = 4
    rate: float | None = None
    requests: int | None = None
    duration: float | None = None
    seed: int = 0


async def send_all(
    prompts: Iterator[Prompt],
    load: Load,
    ask: Callable[[Prompt], Awaitable[Record]],
    done: Callable[[Record], None],
    stop: asyncio.Event,
) -> int:
    """Send until the load is spent, the prompts end, or `stop` is set; returns how many were cancelled in flight.

    When the duration is over nothing new is sent and what is in flight is awaited; on `stop` it is cancelled.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + load.duration if load.duration is not None else float("inf")
    source = islice(prompts, load.requests)
    sent = finished = 0

    async def one(prompt: Prompt) -> None:
        nonlocal sent, finished
        sent += 1
        record = await ask(prompt)
        finished += 1
        done(record)

    async def worker() -> None:
        while loop.time() < deadline and (prompt := next(source, None)) is not None:
            await one(prompt)

    async def closed_loop() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(load.concurrency):
                group.create_task(worker())

    async def open_loop(rate: float) -> None:
        due = loop.time()
        async with asyncio.TaskGroup() as group:
            for gap in poisson_gaps(rate, load.seed):
                due += gap  # arrivals keep their times however long the answers take
                if due >= deadline or (prompt := next(source, None)) is None:
                    break
                await asyncio.sleep(max(0.0, due - loop.time()))
                group.create_task(one(prompt))

    sender = asyncio.create_task(open_loop(load.rate) if load.rate is not None else closed_loop())
    stopper = asyncio.create_task(stop.wait())
    await asyncio.wait({sender, stopper}, return_when=asyncio.FIRST_COMPLETED)
    stopper.cancel()
    if not sender.done():
        sender.cancel()
        await asyncio.wait({sender})
    if not sender.cancelled() and (failure := sender.exception()) is not None:
        raise failure
    return sent - finished
