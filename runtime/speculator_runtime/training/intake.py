"""Traces in, samples out: what may be trained on goes to the buffer, everything else is counted by its reason."""

import logging
from collections import Counter, deque

from torch import Tensor

from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.traces.codec import Trace

from .buffer import OTHER_TARGET, SampleBuffer
from .sample import UnusableTrace, from_trace

log = logging.getLogger(__name__)
OTHER_SHAPE = "OtherShape"


class Intake:
    """Decides on each trace. One thread calls `accept`; the counters may be read from any."""

    def __init__(self, config: DrafterConfig, max_length: int, buffer: SampleBuffer) -> None:
        self._config = config
        self._max_length = max_length
        self._buffer = buffer
        self.outputs: deque[Tensor] = deque()  # of samples taken in, for the vocabulary; the trainer empties it
        self.received = 0
        self.accepted = 0
        self.opted_out = 0
        self.refused: Counter[str] = Counter()
        self.expected_target: str | None = None  # set by the operator's directive
        self.seen_target: str | None = None  # of the first trace taken, where no directive says

    @property
    def target_digest(self) -> str | None:
        """The target whose samples are trained on; None before anything is known of it."""
        return self.expected_target or self.seen_target

    def accept(self, trace: Trace) -> bool:
        """Take a trace in if it may be trained on; opted-out requests leave nothing behind."""
        self.received += 1
        header = trace.header
        if header.opt_out:
            self.opted_out += 1
            return False
        shape = (header.hidden_size, header.vocab_size, header.capture_layers)
        if shape != (self._config.hidden_size, self._config.vocab_size, self._config.capture_layers):
            self._refuse(
                OTHER_SHAPE,
                f"request {header.request_id} comes from a target with (H, V, captured layers) = {shape}, the drafter "
                f"is for {(self._config.hidden_size, self._config.vocab_size, self._config.capture_layers)}",
            )
            return False
        if self.target_digest is None:
            self.seen_target = header.target_digest
        if header.target_digest != self.target_digest:
            self._refuse(OTHER_TARGET, f"request {header.request_id} comes from target {header.target_digest}")
            return False
        try:
            sample = from_trace(trace, self._max_length)
        except UnusableTrace as error:
            self._refuse(error.reason, str(error))
            return False
        self.accepted += 1
        self.outputs.append(sample.output.clone())
        self._buffer.add(sample)
        return True

    def _refuse(self, reason: str, message: str) -> None:
        if not self.refused[reason]:
            log.warning("%s (%s); further ones are counted, not logged", message, reason)
        self.refused[reason] += 1

    @property
    def dropped(self) -> int:
        """Requests lost to training so far: refused here, or dropped by the buffer."""
        return sum(self.refused.values()) + sum(self._buffer.dropped.values())
