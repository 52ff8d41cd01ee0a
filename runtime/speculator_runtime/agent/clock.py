"""Time as the agent sees it; handed in, so that an hour of blocks is tested in a second."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Reads time and waits."""

    def time(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, at most `seconds`; whether it is set."""
        ...


class SystemClock:
    """The machine's time."""

    def time(self) -> float:
        """See Clock."""
        return time.time()

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """See Clock."""
        try:
            await asyncio.wait_for(event.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        return True
