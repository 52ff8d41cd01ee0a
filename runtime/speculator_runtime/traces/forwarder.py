"""The agent's end: takes traces from the engine, applies the policy, passes them on to the trainer, encrypted.

Bounded in bytes; the oldest is dropped and counted. Looks at headers only and needs no torch. A trainer that is away,
slow or restarting costs traces, never the engine's time.
"""

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

from .errors import TraceError, TraceKeyError
from .keys import CurveKeys
from .wire import peek, replace_header, sampled

log = logging.getLogger(__name__)
_POLL_MILLISECONDS = 200
_KEY_CHECK_SECONDS = 5.0


@dataclass(frozen=True)
class ForwardPolicy:
    """Which requests are forwarded."""

    share: float = 1.0
    opt_out_default: bool = False
    pod: str = ""


@dataclass(frozen=True)
class ForwarderCounters:
    """Since the start. `received` = the others and what waits (`waiting_traces`)."""

    received: int = 0
    forwarded: int = 0
    dropped: int = 0
    opted_out: int = 0
    not_sampled: int = 0
    refused: int = 0
    waiting_traces: int = 0
    waiting_bytes: int = 0


class ByteQueue:
    """First in, first out, bounded in bytes: when full, the oldest go. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[bytes] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: bytes) -> int:
        """Add an item; returns how many were dropped for it (itself included, if it alone is over the limit)."""
        self._items.append(item)
        self.nbytes += len(item)
        dropped = 0
        while self.nbytes > self._limit:
            self.pop()
            dropped += 1
        return dropped

    def pop(self) -> bytes:
        """The oldest item."""
        item = self._items.popleft()
        self.nbytes -= len(item)
        return item


class TraceForwarder:
    """PULL on the engine's ipc endpoint (bound here), PUSH to the trainer over CURVE, one thread."""

    def __init__(
        self,
        endpoint: str,
        trainer_endpoint: str | None,
        keys: Callable[[], CurveKeys] | None,
        policy: ForwardPolicy,
        queue_bytes: int,
    ) -> None:
        """`keys` is called again when the connection is down, so that rotated keys are taken up.

        Without `trainer_endpoint` traces are read and dropped. Raises TraceKeyError, zmq.ZMQError (endpoint).
        """
        self._policy = policy
        self._trainer_endpoint = trainer_endpoint
        self._read_keys = keys
        self._keys = keys() if keys and trainer_endpoint else None
        self._queue = ByteQueue(queue_bytes)
        self._counts: Counter[str] = Counter()
        self._closing = threading.Event()
        # What one forwarder sent is numbered, so that the trainer can count what broke connections swallowed.
        self._stream = os.urandom(8)
        self._sequence = 0
        self._context = zmq.Context()
        self._pull = self._bind(endpoint)
        self._push = self._connect()
        self._thread = threading.Thread(target=self._run, name="trace-forwarder", daemon=True)

    def start(self) -> None:
        """Begin to forward."""
        self._thread.start()

    def close(self, timeout: float = 2.0) -> None:
        """Stop; what still waits is dropped and counted."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._context.destroy(linger=int(timeout * 1000))
        self._counts["dropped"] += len(self._queue)
        self._queue = ByteQueue(0)

    @property
    def counters(self) -> ForwarderCounters:
        """A reading; the thread goes on meanwhile."""
        return ForwarderCounters(**self._counts, waiting_traces=len(self._queue), waiting_bytes=self._queue.nbytes)

    def _bind(self, endpoint: str) -> "zmq.Socket[bytes]":
        if endpoint.startswith("ipc://"):
            Path(endpoint.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True)
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, 8)
        socket.bind(endpoint)
        return socket

    def _connect(self) -> "zmq.Socket[bytes] | None":
        if self._trainer_endpoint is None:
            return None
        socket = self._context.socket(zmq.PUSH)
        # IMMEDIATE and the small mark: what waits, waits in our own queue, where it is bounded and counted.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, 1)
        socket.setsockopt(zmq.LINGER, 500)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5000)
        # A trainer whose node vanished sends no FIN: heartbeats find out.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        if self._keys is not None:
            socket.curve_publickey = self._keys.public
            socket.curve_secretkey = self._keys.secret
            socket.curve_serverkey = self._keys.peer
        socket.connect(self._trainer_endpoint)
        return socket

    def _run(self) -> None:
        keys_checked = time.monotonic()
        while not self._closing.is_set():
            ready = self._poll()
            if self._pull in ready:
                self._take(self._pull.recv())
            if self._push is not None and self._push in ready:
                self._pass_on(self._push)
            elif len(self._queue) and time.monotonic() - keys_checked > _KEY_CHECK_SECONDS:
                keys_checked = time.monotonic()
                self._reconnect_if_keys_changed()

    def _poll(self) -> set[object]:
        poller = zmq.Poller()
        poller.register(self._pull, zmq.POLLIN)
        # Asked for only with something to send: an idle open connection is always writable.
        if self._push is not None and len(self._queue):
            poller.register(self._push, zmq.POLLOUT)
        return {socket for socket, _ in poller.poll(_POLL_MILLISECONDS)}

    def _take(self, data: bytes) -> None:
        self._counts["received"] += 1
        try:
            header = peek(data)
            opted_out = self._policy.opt_out_default if header.opt_out is None else header.opt_out
            if opted_out:
                self._counts["opted_out"] += 1
                return
            if not sampled(header.request_id, self._policy.share):
                self._counts["not_sampled"] += 1
                return
            if self._policy.pod and not header.pod:
                data = replace_header(data, header.model_copy(update={"pod": self._policy.pod}))
        except TraceError as error:
            self._counts["refused"] += 1
            log.warning("a trace from the engine was refused: %s", error)
            return
        if self._push is None:
            self._counts["dropped"] += 1
            return
        self._counts["dropped"] += self._queue.push(data)

    def _pass_on(self, push: "zmq.Socket[bytes]") -> None:
        self._sequence += 1
        push.send_multipart([self._stream + self._sequence.to_bytes(8, "big"), self._queue.pop()], copy=False)
        self._counts["forwarded"] += 1

    def _reconnect_if_keys_changed(self) -> None:
        if self._read_keys is None or self._push is None:
            return
        try:
            keys = self._read_keys()
        except TraceKeyError as error:
            log.warning("%s", error)
            return
        if keys != self._keys:
            log.info("the CURVE keys changed: connecting to the trainer again")
            self._keys = keys
            self._push.close(linger=0)
            self._push = self._connect()
