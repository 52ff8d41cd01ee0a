"""The training loop: draws batches, trains, keeps checkpoints, publishes when a version is due. One thread.

What may be asked of it from other threads: `status`, `direct`, `notify`, `stop`.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from speculator_runtime.contracts.settings import TrainerSettings
from speculator_runtime.contracts.trainer import TrainerDirective, TrainerStatus
from speculator_runtime.drafter.checkpoint import CheckpointRefused
from speculator_runtime.storage import StoreError

from .buffer import SampleBuffer
from .intake import Intake
from .learner import StepReport
from .lineage import Lineage
from .publishing import PublishedMetrics, Publisher, publish_due
from .resume import ResumeState, write_state
from .uploads import CheckpointUploads

log = logging.getLogger(__name__)

WAITING, TRAINING, PAUSED, FAILED = "WaitingForTraces", "Training", "Paused", "Failed"
MAX_SKIPPED_IN_A_ROW = 50
_IDLE_SECONDS = 0.5
_PRUNE_SECONDS = 1.0
_PUBLISH_RETRY_SECONDS = 15.0


class StaleDirective(Exception):
    """A directive older than the one in force."""


class TrainingDiverged(Exception):
    """Too many updates in a row could not be applied."""


@dataclass
class _Recent:
    """Running means over the last steps, and when things last happened (monotonic seconds)."""

    loss: float | None = None
    accept_length: float | None = None
    tokens_per_second: float | None = None
    steps: int = 0  # of this process
    trained_requests: int = 0  # of this process
    checkpoint_at: float = 0.0
    published_at: float | None = None
    publish_not_before: float = 0.0
    pruned_at: float = 0.0
    message: str = ""

    def take(self, report: StepReport, seconds: float) -> None:
        self.steps += 1
        self.tokens_per_second = _mean(self.tokens_per_second, report.tokens / max(seconds, 1e-9))
        if report.applied:
            self.loss = _mean(self.loss, report.loss)
            self.accept_length = _mean(self.accept_length, report.accept_length)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else 0.9 * old + 0.1 * new


@dataclass
class Trainer:
    """Glue between buffer, learner, checkpoints and publisher; the decisions are in those."""

    settings: TrainerSettings
    lineage: Lineage
    buffer: SampleBuffer
    intake: Intake
    publisher: Publisher
    uploads: CheckpointUploads
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    phase: str = WAITING
    directive: TrainerDirective | None = None
    _recent: _Recent = field(default_factory=_Recent)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.settings.training.seed)
        stored = self.lineage.extra
        if "generator" in stored:
            self._generator.set_state(torch.tensor(stored["generator"], dtype=torch.uint8))
        if self.intake.seen_target is None:
            self.intake.seen_target = stored.get("target_digest") or None  # type: ignore[assignment]
        self._recent.checkpoint_at = self.monotonic()

    # From other threads

    def direct(self, directive: TrainerDirective) -> TrainerStatus:
        """Take a directive; the same or a newer generation. Raises StaleDirective."""
        with self._lock:
            if self.directive is not None and directive.generation < self.directive.generation:
                raise StaleDirective(
                    f"directive of generation {directive.generation}, but {self.directive.generation} is in force"
                )
            self.directive = directive
            self.intake.expected_target = directive.target_digest
        self._wake.set()
        return self.status()

    def notify(self) -> None:
        """A sample came in."""
        self._wake.set()

    def stop(self) -> None:
        """End the loop after the step under way; `run` then writes a last checkpoint."""
        self._stopping.set()
        self._wake.set()

    def status(self) -> TrainerStatus:
        """Where training stands."""
        recent, progress, held = self._recent, self.lineage.progress, self.buffer.occupancy()
        return TrainerStatus(
            directive_generation=self.directive.generation if self.directive else 0,
            phase=self.phase,
            message=recent.message,
            step=self.lineage.learner.step,
            skipped_steps=self.lineage.learner.guard.skipped,
            loss=recent.loss,
            train_accept_length=recent.accept_length,
            requests_received=self.intake.received,
            requests_dropped=self.intake.dropped,
            requests_opted_out=self.intake.opted_out,
            buffer_samples=held.samples,
            buffer_bytes=held.bytes,
            buffer_domains=held.domains,
            tokens_per_second=recent.tokens_per_second,
            latest=progress.latest,
            published=progress.published,
        )

    # The loop

    def run(self) -> None:
        """Train until `stop`. Raises TrainingDiverged; other errors are bugs. The last state is on disk at the end."""
        log.info("training starts from %s", self.lineage.origin)
        try:
            while not self._stopping.is_set():
                if not self.turn():
                    self._wake.wait(_IDLE_SECONDS)
                    self._wake.clear()
            self.checkpoint()
        except BaseException as error:
            self.phase, self._recent.message = FAILED, f"{type(error).__name__}: {error}"
            raise

    def turn(self) -> bool:
        """One round: a step if one may be taken, then checkpoint and publication if due. False: nothing to do now."""
        now = self.monotonic()
        if now - self._recent.pruned_at >= _PRUNE_SECONDS:
            self._recent.pruned_at = now
            self.buffer.prune(self.wall(), self._published_version(), self.intake.target_digest)
        self._observe()
        directive = self.directive
        if directive is not None and directive.paused:
            self.phase = PAUSED
            return False
        worked = self._may_step() and self._step()
        if self.monotonic() - self._recent.checkpoint_at >= self.settings.training.checkpoint_interval_seconds:
            self.checkpoint()
        if directive is None or not directive.publishing_frozen:
            self._publish_if_due()
        return worked

    def checkpoint(self) -> None:
        """Write the state to disk, and hand it to the uploads; nothing is written when nothing was trained."""
        self._recent.checkpoint_at = self.monotonic()
        if self.lineage.learner.step == 0:
            return
        self.lineage.sequence += 1
        state = ResumeState(self.lineage.sequence, self.lineage.learner.tensors(), self._scalars())
        folder = write_state(Path(self.settings.work_directory) / "checkpoints", state, keep=self.uploads.current)
        self.uploads.put(folder)

    def _scalars(self) -> dict[str, Any]:
        return {
            "learner": self.lineage.learner.scalars(),
            "progress": self.lineage.progress.to_json(),
            "trainer": {
                "generator": self._generator.get_state().tolist(),
                "target_digest": self.intake.target_digest or "",
            },
        }

    def _observe(self) -> None:
        while self.intake.outputs:
            self.lineage.learner.observe(self.intake.outputs.popleft())

    def _may_step(self) -> bool:
        training, held = self.settings.training, self.buffer.occupancy()
        wanted = training.warmup_requests
        if self.lineage.progress.requests_total:  # The warm-up is over; after a restart a batch will do.
            wanted = min(wanted, training.batch_size)
        if held.samples < wanted:
            self.phase = WAITING
            self._recent.message = f"{held.samples} of {wanted} requests to begin with"
            return False
        limit = training.steps_per_request
        if limit is not None and self._recent.steps >= limit * self.intake.accepted:
            self._recent.message = f"waiting for traces: {limit:g} steps per request"
            return False
        return True

    def _step(self) -> bool:
        training, learner = self.settings.training, self.lineage.learner
        samples = self.buffer.draw(training.batch_size, training.max_fresh_per_batch, self._generator)
        if not samples:
            return False
        begin = self.monotonic()
        report = learner.learn(samples)
        self._recent.take(report, self.monotonic() - begin)
        for sample in samples:
            if sample.uses == 1:
                self.lineage.progress.count(sample)
                self._recent.trained_requests += 1
        self.phase, self._recent.message = TRAINING, ""
        if not report.applied:
            log.warning("update skipped: loss %g, gradient norm %g", report.loss, report.gradient_norm)
        if learner.guard.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise TrainingDiverged(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row were not finite or exploded (last loss {report.loss:g}, "
                f"gradient norm {report.gradient_norm:g}); a restart goes back to the last checkpoint; lower "
                "learning_rate if it happens again"
            )
        return True

    def _publish_if_due(self) -> None:
        recent, progress, learner = self._recent, self.lineage.progress, self.lineage.learner
        now = self.monotonic()
        since = None if recent.published_at is None else now - recent.published_at
        target = self.intake.target_digest
        if target is None or now < recent.publish_not_before:
            return
        if not publish_due(self.settings.publish, progress, learner.step, since, recent.trained_requests):
            return
        metrics = PublishedMetrics(recent.loss or 0.0, recent.accept_length or 1.0)
        try:
            stored = self.publisher.publish(learner, progress, target, metrics)
        except (StoreError, CheckpointRefused) as error:
            recent.publish_not_before = self.monotonic() + _PUBLISH_RETRY_SECONDS
            recent.message = f"could not publish: {error}"
            log.error("could not publish, next try in %.0f s: %s", _PUBLISH_RETRY_SECONDS, error)
            return
        progress.published_as(stored.ref, stored.sha256, learner.step)
        recent.published_at = self.monotonic()
        log.info(
            "published version %d at step %d (loss %.3f)", stored.manifest.version, learner.step, recent.loss or 0.0
        )
        self.checkpoint()

    def _published_version(self) -> int:
        latest = self.lineage.progress.latest
        return latest.version if latest else 0
