import pytest
import torch

from speculator_runtime.contracts.trace import TraceHeader
from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.traces.codec import Trace


@pytest.fixture
def config() -> DrafterConfig:
    return DrafterConfig(
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        vocab_size=50,
        draft_vocab_size=50,
        capture_layers=(0, 1, 2),
    )


@pytest.fixture
def drafter(config: DrafterConfig) -> Eagle3Drafter:
    """A drafter in float64, weights large enough that attention matters."""
    drafter = Eagle3Drafter(config)
    drafter.reset(seed=3)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.mul_(10.0 if parameter.dim() > 1 else 1.3)
    return drafter.double()


@pytest.fixture
def embedding() -> torch.Tensor:
    return torch.randn(50, 16, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@pytest.fixture
def make_trace():
    """A trace of random content; `hidden_rows` and `teacher_rows` default to what the engine keeps."""

    def make(
        seed=0,
        prompt=4,
        total=10,
        hidden_size=16,
        vocab=50,
        k=6,
        hidden_rows=None,
        teacher_rows=None,
        tokens=None,
        request_id=None,
        finished=2.0,
        **header,
    ) -> Trace:
        generator = torch.Generator().manual_seed(seed)
        hidden_rows = torch.arange(total - 1) if hidden_rows is None else torch.as_tensor(hidden_rows)
        teacher_rows = torch.arange(prompt - 1, total - 1) if teacher_rows is None else torch.as_tensor(teacher_rows)
        logits = 3 * torch.randn(teacher_rows.numel(), vocab, generator=generator)
        top = logits.topk(min(k, vocab))
        if tokens is None:
            tokens = torch.randint(0, vocab, (total,), generator=generator)
        return Trace(
            TraceHeader(
                request_id=request_id or f"request-{seed}",
                prompt_length=prompt,
                total_length=total,
                hidden_size=hidden_size,
                vocab_size=vocab,
                capture_layers=(0, 1, 2),
                target_digest=header.pop("target_digest", "t" * 64),
                draft_version=header.pop("draft_version", 0),
                mode="TargetOnly",
                arrived=1.0,
                finished=finished,
                **header,
            ),
            {
                "tokens": torch.as_tensor(tokens).int(),
                "hidden_rows": hidden_rows.int(),
                "hidden": torch.randn(hidden_rows.numel(), 3 * hidden_size, generator=generator),
                "teacher_rows": teacher_rows.int(),
                "teacher_ids": top.indices.int(),
                "teacher_logits": top.values,
                "teacher_lse": logits.logsumexp(-1),
            },
        )

    return make
