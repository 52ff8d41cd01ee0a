"""The engine's end: hands finished requests to the agent, and never makes the engine wait.

Encoding and sending happen in a thread of its own. At most `queue` traces wait; the oldest is dropped and counted.
"""

import logging
import threading
from collections import deque
from dataclasses import dataclass, replace

import zmq

from .codec import Trace, encode
from .errors import TraceError

log = logging.getLogger(__name__)
_POLL_MILLISECONDS = 200


@dataclass(frozen=True)
class SenderCounters:
    """Since the start: `captured` = `sent` + `dropped` + `refused` + what waits."""

    captured: int = 0
    sent: int = 0
    dropped: int = 0
    refused: int = 0


class TraceSender:
    """PUSH to the agent's ipc endpoint. Survives an agent that is away, restarts or is slow."""

    def __init__(self, endpoint: str, queue: int = 64) -> None:
        self._endpoint = endpoint
        self._limit = queue
        self._waiting: deque[Trace] = deque()
        self._changed = threading.Condition()
        self._counters = SenderCounters()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="trace-sender", daemon=True)
        self._thread.start()

    @property
    def counters(self) -> SenderCounters:
        """A consistent reading."""
        with self._changed:
            return self._counters

    def send(self, trace: Trace) -> None:
        """Queue a trace; returns at once, always. The tensors must not be written to afterwards."""
        with self._changed:
            self._waiting.append(trace)
            dropped = 0
            while len(self._waiting) > self._limit:
                self._waiting.popleft()
                dropped += 1
            self._count(captured=1, dropped=dropped)
            self._changed.notify()

    def close(self, timeout: float = 2.0) -> None:
        """Stop, after at most `timeout` seconds for what still waits; the rest is counted as dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            self._changed.wait_for(lambda: not self._waiting or not self._thread.is_alive(), timeout)
            self._count(dropped=len(self._waiting))
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join(timeout=5.0)

    def _count(self, captured: int = 0, sent: int = 0, dropped: int = 0, refused: int = 0) -> None:
        now = self._counters
        self._counters = replace(
            now,
            captured=now.captured + captured,
            sent=now.sent + sent,
            dropped=now.dropped + dropped,
            refused=now.refused + refused,
        )

    def _run(self) -> None:
        # A context of its own: closing must not wait for, or end, anybody else's sockets.
        context = zmq.Context()
        socket = context.socket(zmq.PUSH)
        # IMMEDIATE and the small mark: without a live agent traces wait in our queue, where the oldest goes first.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, 1)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(self._endpoint)
        try:
            while self._wait():
                if socket.poll(_POLL_MILLISECONDS, zmq.POLLOUT):
                    self._send_oldest(socket)
        finally:
            socket.close()
            context.term()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closing)
            return bool(self._waiting)

    def _send_oldest(self, socket: "zmq.Socket[bytes]") -> None:
        with self._changed:
            if not self._waiting:
                return
            trace = self._waiting.popleft()
        try:
            data = encode(trace)
        except TraceError as error:
            log.error("a trace was not sent: %s", error)
            with self._changed:
                self._count(refused=1)
                self._changed.notify_all()
            return
        socket.send(data)
        with self._changed:
            self._count(sent=1)
            self._changed.notify_all()
