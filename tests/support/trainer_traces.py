"""Traces of random content for a trainer on the tiny target of tests/integration/trainer."""

import torch

from speculator_runtime.contracts.trace import TraceHeader
from speculator_runtime.traces.codec import Trace

HIDDEN, VOCAB = 32, 320
TOKEN = "trainer-token-of-the-test"


def make_trace(number: int, **header) -> Trace:
    """A request of 12 tokens, 5 of them prompt."""
    generator = torch.Generator().manual_seed(number)
    logits = 3 * torch.randn(7, VOCAB, generator=generator)
    top = logits.topk(8)
    fields = {
        "request_id": f"request-{number}",
        "domain": ("sql", "code")[number % 2],
        "prompt_length": 5,
        "total_length": 12,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "capture_layers": (0, 2, 3),
        "draft_version": 0,
        "target_digest": "t" * 64,
        "mode": "TargetOnly",
        "arrived": 1.0,
        "finished": 2.0,
    }
    return Trace(
        TraceHeader(**(fields | header)),
        {
            "tokens": torch.randint(0, VOCAB, (12,), generator=generator, dtype=torch.int32),
            "hidden_rows": torch.arange(11, dtype=torch.int32),
            "hidden": torch.randn(11, 3 * HIDDEN, generator=generator).bfloat16(),
            "teacher_rows": torch.arange(4, 11, dtype=torch.int32),
            "teacher_ids": top.indices.int(),
            "teacher_logits": top.values.bfloat16(),
            "teacher_lse": logits.logsumexp(-1),
        },
    )
