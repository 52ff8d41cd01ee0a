"""The trainer's end: accepts traces from agents that hold the right key, decodes and checks them, counts the rest.

What is wrong is refused and counted by reason; it never raises out of `receive`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq
from zmq.auth.thread import ThreadAuthenticator

from .codec import Trace, decode
from .errors import TraceError, TraceKeyError
from .keys import CurveKeys

log = logging.getLogger(__name__)
_KEY_CHECK_SECONDS = 5.0
_BIND_SECONDS = 2.0
_STREAM_BYTES = 8


@dataclass
class ReceiverCounters:
    """Since the start."""

    received: int = 0
    bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    unknown_keys: int = 0
    lost_in_transit: int = 0

    @property
    def refused_total(self) -> int:
        """Messages that were not usable traces."""
        return sum(self.refused.values())


class TraceReceiver:
    """PULL bound to `bind`, CURVE server. Use it from one thread. Raises zmq.ZMQError (bind), TraceKeyError."""

    def __init__(
        self,
        bind: str,
        keys: Callable[[], CurveKeys] | None,
        *,
        high_water: int = 16,
        max_message_bytes: int = 1 << 30,
    ) -> None:
        """`keys` is read again every few seconds: a rotated pair is taken up, a rotated agent key too.

        None leaves the socket open to anybody: for tests and loopback only. A slow reader fills `high_water` messages
        and then the agents' own bounded queues.
        """
        self.counters = ReceiverCounters()
        self._bind = bind
        self._read_keys = keys
        self._keys = keys() if keys else None
        self._keys_checked = time.monotonic()
        self._high_water = high_water
        self._max_message_bytes = max_message_bytes
        self._last_sequence: dict[bytes, int] = {}
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        if self._keys is not None:
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(domain="*", credentials_provider=self)
        self._socket = self._open()
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by ZAP for every connection: is this client's public key the agents'?"""
        known = self._keys is not None and key == self._keys.peer
        if not known:
            self.counters.unknown_keys += 1
            log.warning("a trace connection with an unknown CURVE key was refused")
        return known

    def receive(self, timeout: float) -> Trace | None:
        """The next usable trace; None when none came within `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            self._take_up_keys()
            left = end - time.monotonic()
            if not self._socket.poll(max(0, int(min(left, 1.0) * 1000))):
                if time.monotonic() >= end:
                    return None
                continue
            trace = self._decode(self._socket.recv_multipart())
            if trace is not None:
                return trace

    def close(self) -> None:
        """Close the socket; what was not read is lost."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)

    def _decode(self, frames: list[bytes]) -> Trace | None:
        if len(frames) > 1:
            self._count_lost(frames[0])
        self.counters.bytes += len(frames[-1])
        try:
            trace = decode(frames[-1])
        except TraceError as error:
            self.counters.refused[error.reason.value] += 1
            log.warning("a trace was refused: %s", error)
            return None
        self.counters.received += 1
        return trace

    def _count_lost(self, label: bytes) -> None:
        """A forwarder numbers what it sends: a gap is what a broken connection swallowed."""
        stream, sequence = label[:_STREAM_BYTES], int.from_bytes(label[_STREAM_BYTES:], "big")
        last = self._last_sequence.get(stream)
        if last is not None and sequence > last + 1:
            self.counters.lost_in_transit += sequence - last - 1
        self._last_sequence[stream] = sequence

    def _open(self) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, self._high_water)
        socket.setsockopt(zmq.MAXMSGSIZE, self._max_message_bytes)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        if self._keys is not None:
            socket.curve_publickey = self._keys.public
            socket.curve_secretkey = self._keys.secret
            socket.curve_server = True
        end = time.monotonic() + _BIND_SECONDS
        while True:
            try:
                socket.bind(self._bind)
                return socket
            except zmq.ZMQError as error:
                # ZMQ closes the socket before this one in the background; its port is free a moment later.
                if error.errno != zmq.EADDRINUSE or time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _take_up_keys(self) -> None:
        if self._read_keys is None or time.monotonic() - self._keys_checked < _KEY_CHECK_SECONDS:
            return
        self._keys_checked = time.monotonic()
        try:
            keys = self._read_keys()
        except TraceKeyError as error:
            log.warning("%s", error)
            return
        if keys == self._keys:
            return
        own_changed = self._keys is None or (keys.public, keys.secret) != (self._keys.public, self._keys.secret)
        self._keys = keys
        if own_changed:
            log.info("the trainer's CURVE pair changed: binding again")
            self._bind = self.endpoint
            self._socket.close(linger=0)
            self._socket = self._open()
