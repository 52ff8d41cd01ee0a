"""When a version is due (pure), and how it is published: claim a number, write the files, manifest last."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from speculator_runtime.contracts.ledger import Manifest, TargetIdentity
from speculator_runtime.contracts.settings import PublishConfig, TrainerSettings
from speculator_runtime.drafter.checkpoint import save_checkpoint
from speculator_runtime.storage import Ledger, StoredManifest, describe_files

from .counters import Progress
from .learner import Learner


def publish_due(
    config: PublishConfig, progress: Progress, step: int, seconds_since_last: float | None, trained_since_start: int
) -> bool:
    """Whether a version is due.

    progress.window_requests: requests trained on since the last version. seconds_since_last: since this process last
    published, None if it has not. trained_since_start: requests trained on by this process; a trainer that restarted
    trains on fresh samples before it publishes.
    """
    if trained_since_start < 1 or step <= progress.published_at_step:
        return False
    if progress.published == 0:
        wanted = config.first_after_requests or config.every_requests
        if step < config.first_after_steps:
            return False
    else:
        wanted = config.every_requests
        if seconds_since_last is not None and seconds_since_last < config.min_interval_seconds:
            return False
    return progress.window_requests >= wanted


@dataclass(frozen=True)
class PublishedMetrics:
    """What the manifest says of the training, for trend only."""

    loss: float
    train_accept_length: float


class Publisher:
    """Publishes the learner's drafter. Raises StoreError's subclasses and CheckpointRefused; never half a version."""

    def __init__(
        self, settings: TrainerSettings, ledger: Ledger, code_version: str, claimed_by: str, now: Callable[[], datetime]
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._code_version = code_version
        self._claimed_by = claimed_by
        self._now = now
        self._directory = Path(settings.work_directory) / "publishing"

    def publish(
        self, learner: Learner, progress: Progress, target_digest: str, metrics: PublishedMetrics
    ) -> StoredManifest:
        """Claim the next number and publish under it. A number whose publication failed stays unused."""
        if self._directory.exists():
            shutil.rmtree(self._directory)
        save_checkpoint(self._directory, learner.drafter, learner.vocabulary)
        number = self._ledger.claim_version(self._claimed_by)
        config = learner.config
        manifest = Manifest(
            version=number,
            parent=progress.latest,
            parent_manifest_sha256=progress.latest_manifest_sha256,
            files=describe_files(self._directory),
            target=TargetIdentity(
                model=self._settings.model,
                revision=self._settings.model_revision,
                digest=target_digest,
                hidden_size=config.hidden_size,
                vocab_size=config.vocab_size,
            ),
            capture_layers=config.capture_layers,
            draft_vocab_size=config.draft_vocab_size,
            vocabulary=learner.vocabulary.kind,
            vocabulary_used=learner.vocabulary.used,
            code_version=self._code_version,
            training_policy_sha256=self._settings.training_policy_sha256,
            data=progress.window(),
            training_step=learner.step,
            metrics={"loss": metrics.loss, "train_accept_length": metrics.train_accept_length},
            created=self._now(),
        )
        stored = self._ledger.publish(number, self._directory, manifest)
        shutil.rmtree(self._directory)
        return stored
