"""A tiny float32 engine with real sockets, started once for a module."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from speculator_runtime.contracts.settings import DrafterSettings
from speculator_runtime.drafter.checkpoint import save_checkpoint
from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.vocabulary import VocabularyMap
from support.engine_server import Running, engine_settings, running_engine
from support.tiny_target import make_tiny_target

VOCAB = 320


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"), layers=4, hidden=32, vocab=VOCAB)


@pytest.fixture(scope="module")
def engine(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    torch.set_num_threads(1)
    with running_engine(engine_settings(tiny_directory, tmp_path_factory.mktemp("engine"))) as running:
        yield running


@pytest.fixture
def write_drafter(tiny_directory: Path, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """Writes a drafter checkpoint that fits the engine's target; returns its directory and sha256."""

    def write(seed: int = 1, size: int = VOCAB, used: int = VOCAB, name: str = "drafter") -> tuple[Path, str]:
        target = json.loads((tiny_directory / "config.json").read_text())
        config = DrafterConfig.from_target(target, DrafterSettings(draft_vocab_size=size))
        drafter = Eagle3Drafter(config, used)
        drafter.reset(seed)
        order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:used].tolist()
        directory = tmp_path / f"{name}-{seed}"
        return directory, save_checkpoint(directory, drafter, VocabularyMap(VOCAB, size, order))

    return write
