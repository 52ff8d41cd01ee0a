"""The control operations on a running engine: load a drafter, set the mode, read state and counters.

What is slow (reading, hashing, checking a checkpoint) happens in the caller's thread; what touches the live drafter
happens between two decode steps. A refused checkpoint has touched nothing.
"""

import threading
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from speculator_runtime.contracts.control import (
    DraftShape,
    EngineState,
    EngineStats,
    LoadDrafter,
    RefusalReason,
    SetMode,
)
from speculator_runtime.drafter.checkpoint import Checkpoint, CheckpointRefused, live_digest, read_checkpoint
from speculator_runtime.traces.sender import TraceSender

from .draft import DrafterRunner
from .loop import EngineLoop
from .target import Target

ENGINE = f"reference/{version('speculator-operator')}"


class ShapeError(ValueError):
    """A draft shape that cannot be run."""


class ControlService:
    """Thread-safe; every operation is idempotent."""

    def __init__(
        self, loop: EngineLoop, runner: DrafterRunner, target: Target, sender: TraceSender | None, sha256: str
    ) -> None:
        """sha256: of the checkpoint that the drafter was started from, empty for the random day-0 drafter."""
        self._loop = loop
        self._runner = runner
        self._target = target
        self._sender = sender
        self._lock = threading.Lock()  # one load at a time
        self._sha256 = sha256
        self._digest = live_digest(runner.drafter, runner.d2t())

    def state(self) -> EngineState:
        """What runs right now."""
        policy = self._loop.policy
        return EngineState(
            engine=ENGINE,
            healthy=self._loop.healthy(),
            mode=policy.effective_mode,
            shape=policy.shape,
            target_only_above=policy.target_only_above,
            version=policy.draft_version,
            sha256=self._sha256,
            live_digest=self._digest,
            target_digest=self._target.digest,
            running_requests=self._loop.running,
            waiting_requests=self._loop.waiting,
        )

    def stats(self) -> EngineStats:
        """Counters since the engine started."""
        counters = self._sender.counters if self._sender else None
        if counters is None:
            return self._loop.stats.snapshot(0, 0)
        return self._loop.stats.snapshot(counters.captured, counters.dropped + counters.refused)

    def load(self, request: LoadDrafter) -> EngineState:
        """Read, check and swap in a checkpoint; returns once it is live. Raises CheckpointRefused."""
        with self._lock:
            if (request.version, request.sha256) == (self._loop.policy.draft_version, self._sha256):
                self._loop.call(self._forget_faults).result()
                return self.state()
            checkpoint = read_checkpoint(Path(request.directory), self._runner.drafter.config, request.sha256)
            checkpoint = self._staged(checkpoint)

            def swap() -> None:
                self._runner.swap(checkpoint)
                self._loop.policy.draft_version = request.version
                self._loop.stats.swaps += 1
                self._forget_faults()

            self._loop.call(swap).result()
            self._sha256 = request.sha256
            self._digest = live_digest(self._runner.drafter, self._runner.d2t())
            return self.state()

    def set_mode(self, request: SetMode) -> EngineState:
        """Decode in another way from the next step on. Raises ShapeError."""
        if request.shape is not None:
            check_shape(request.shape)

        def apply() -> None:
            policy = self._loop.policy
            policy.mode = request.mode
            policy.shape = request.shape or policy.shape
            policy.target_only_above = request.target_only_above
            self._forget_faults()

        self._loop.call(apply).result()
        return self.state()

    def _staged(self, checkpoint: Checkpoint) -> Checkpoint:
        """Weights on the drafter's device in its dtype, so that the swap itself is nothing but a copy in memory."""
        parameters = dict(self._runner.drafter.named_parameters())
        if parameters.keys() != checkpoint.state.keys():
            raise CheckpointRefused(RefusalReason.INTERNAL, "the checkpoint's names passed the check but do not fit")
        moved = {name: t.to(parameters[name].device, parameters[name].dtype) for name, t in checkpoint.state.items()}
        return replace(checkpoint, state=moved)

    def _forget_faults(self) -> None:
        self._loop.policy.faults_in_a_row = 0


def check_shape(shape: DraftShape) -> None:
    """Raises ShapeError for a shape that asks for more nodes than its tree can have."""
    possible = shape.topk + (shape.steps - 1) * shape.topk**2
    if shape.draft_tokens - 1 > possible:
        raise ShapeError(
            f"draft_tokens {shape.draft_tokens} is more than steps {shape.steps} and topk {shape.topk} can draft; "
            f"at most {possible + 1} (the root included)"
        )
