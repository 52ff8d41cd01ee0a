"""Packed linear layers compute what the plain ones do, and a bfloat16 target made of them decodes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from speculator_runtime.contracts.control import DraftShape
from speculator_runtime.engines.reference.packing import PackedLinear, can_pack, pack_linears
from speculator_runtime.engines.reference.sequence import Sequence
from speculator_runtime.engines.reference.target import load_target
from support.engine_bench import make_bench, serve

CPU = torch.device("cpu")
needs_bfloat16 = pytest.mark.skipif(not can_pack(torch.bfloat16, CPU), reason="this CPU's oneDNN has no bfloat16")


@needs_bfloat16
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16, 40])
def test_a_packed_layer_computes_what_the_plain_one_does(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(96, 160, bias=bias).to(torch.bfloat16)
    inputs = torch.randn(2, rows, 96).to(torch.bfloat16)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(plain)(inputs), plain(inputs), rtol=2e-2, atol=2e-2)


@needs_bfloat16
def test_pack_linears_reaches_nested_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.SiLU())).to(torch.bfloat16)
    assert pack_linears(model) == 2
    assert not [m for m in model.modules() if isinstance(m, nn.Linear)]


def test_float32_and_float64_are_left_as_they_are() -> None:
    assert not can_pack(torch.float32, CPU)
    assert not can_pack(torch.float64, CPU)


def test_a_bfloat16_target_agrees_with_float32_and_serves(tiny_directory: Path) -> None:
    narrow = load_target(tiny_directory, "bfloat16", CPU)[0]
    wide = load_target(tiny_directory, "float32", CPU)[0]
    prompt = list(range(20))
    causal = torch.ones(1, 20, 20, dtype=torch.bool).tril()
    order, tokens = torch.arange(20)[None], torch.tensor([prompt])
    with torch.inference_mode():
        logits = [t.logits(t.forward(t.cache(1, 32), 0, [0], tokens, order, causal).hidden) for t in (narrow, wide)]
    assert logits[0].dtype == torch.bfloat16
    torch.testing.assert_close(logits[0].float(), logits[1], rtol=0.1, atol=0.15)
    sequence = Sequence(20, prompt, 16)
    serve(make_bench(narrow).batch, [sequence], [(False, None), (False, DraftShape())], 64, lambda _: None)
    assert sequence.output_length == 16
