"""A tiny float64 target, loaded once, and batches over it: everything real, only small."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from speculator_runtime.engines.reference.target import Target, load_target
from support.engine_bench import Bench, make_bench
from support.tiny_target import make_tiny_target

VOCAB = 320


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"), layers=4, hidden=32, vocab=VOCAB)


@pytest.fixture(scope="session")
def target(tiny_directory: Path) -> Target:
    return load_target(tiny_directory, "float64", torch.device("cpu"))[0]


@pytest.fixture(scope="session")
def plain_generate(tiny_directory: Path) -> Callable[[list[int], int], list[int]]:
    """Greedy output of transformers' own generate on the same weights, one request at a time."""
    model = AutoModelForCausalLM.from_pretrained(tiny_directory, dtype=torch.float64).eval()
    known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def generate(prompt: list[int], new_tokens: int) -> list[int]:
        key = (tuple(prompt), new_tokens)
        if key not in known:
            out = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=new_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            known[key] = out[0, len(prompt) :].tolist()
        return known[key]

    return generate


@pytest.fixture(scope="session")
def bench_of(target: Target) -> Callable[..., Bench]:
    """Makes a batch over the tiny target; see `make_bench`."""
    return functools.partial(make_bench, target)
