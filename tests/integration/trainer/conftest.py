"""A trainer on a tiny target, with a real S3 server; traces of random content in the target's shape."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from speculator_runtime.contracts.settings import (
    DrafterSettings,
    PublishConfig,
    StoreSettings,
    TrainerSettings,
    TrainingConfig,
)
from speculator_runtime.traces.keys import write_key_files
from speculator_runtime.training.main import make_trainer
from speculator_runtime.training.trainer import Trainer
from support.s3server import free_port, private_s3_server, s3_server, store  # noqa: F401
from support.tiny_target import make_tiny_target
from support.trainer_traces import HIDDEN, TOKEN, VOCAB, make_trace


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"), layers=4, hidden=HIDDEN, vocab=VOCAB)


@pytest.fixture
def settings(target: Path, tmp_path: Path, store: StoreSettings) -> TrainerSettings:  # noqa: F811
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    write_key_files(secrets)
    (secrets / "trainer-token").write_text(TOKEN + "\n")
    return TrainerSettings(
        model="tiny",
        target_embedding=str(target),
        drafter=DrafterSettings(draft_vocab_size=128),
        training=TrainingConfig(
            ttt_length=2,
            learning_rate=1e-3,
            warmup_steps=2,
            batch_size=2,
            warmup_requests=3,
            precision="float32",
            checkpoint_interval_seconds=3600,
        ),
        publish=PublishConfig(every_requests=4, min_interval_seconds=0),
        training_policy_sha256="p" * 64,
        store=store,
        host="127.0.0.1",
        port=free_port(),
        trace_bind=f"tcp://127.0.0.1:{free_port()}",
        work_directory=str(tmp_path / "work"),
        threads=1,
        secrets_directory=str(secrets),
    )


@dataclasses.dataclass
class Hand:
    """A trainer whose rounds the test turns itself."""

    trainer: Trainer

    def feed(self, *numbers: int, **header) -> None:
        for number in numbers:
            self.trainer.intake.accept(make_trace(number, **header))

    def turn(self, rounds: int) -> None:
        for _ in range(rounds):
            self.trainer.turn()

    def close(self) -> None:
        """As SIGTERM does: a last checkpoint, copied to S3."""
        self.trainer.checkpoint()
        assert self.trainer.uploads.close(30)

    @property
    def versions(self) -> list[int]:
        return [m.version for m in self.trainer.publisher._ledger.list_versions()]


@pytest.fixture
def by_hand() -> Callable[[TrainerSettings], Hand]:
    return lambda settings: Hand(make_trainer(settings))
