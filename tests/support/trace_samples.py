"""Traces with made-up content of the right shapes."""

import torch

from speculator_runtime.contracts.trace import TraceHeader
from speculator_runtime.traces.codec import Trace


def make_trace(
    request_id: str = "r-1", *, tokens: int = 6, hidden_size: int = 4, nodes: int = 0, dtype=torch.bfloat16, **header
) -> Trace:
    """A request of `tokens` tokens, half of them prompt, with `nodes` rejected draft nodes."""
    generator = torch.Generator().manual_seed(len(request_id) + tokens)

    def ids(*shape):
        return torch.randint(0, 32, shape, generator=generator, dtype=torch.int32)

    def floats(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    rows = torch.arange(tokens, dtype=torch.int32)
    tensors = {
        "tokens": ids(tokens),
        "hidden_rows": rows,
        "hidden": floats(tokens, 3 * hidden_size),
        "teacher_rows": rows[1:],
        "teacher_ids": ids(tokens - 1, 5),
        "teacher_logits": floats(tokens - 1, 5),
        "teacher_lse": torch.randn(tokens - 1, generator=generator),
    }
    if nodes:
        tensors |= {
            "tree_step": torch.zeros(nodes, dtype=torch.int32),
            "tree_position": torch.full((nodes,), tokens, dtype=torch.int32),
            "tree_parent": torch.arange(-1, nodes - 1, dtype=torch.int32),
            "tree_tokens": ids(nodes),
            "tree_hidden": floats(nodes, 3 * hidden_size),
            "tree_teacher_ids": ids(nodes, 5),
            "tree_teacher_logits": floats(nodes, 5),
            "tree_teacher_lse": torch.randn(nodes, generator=generator),
        }
    fields = {
        "request_id": request_id,
        "prompt_length": max(1, tokens // 2),
        "total_length": tokens,
        "hidden_size": hidden_size,
        "vocab_size": 32,
        "capture_layers": (2, 3, 4),
        "draft_version": 1,
        "target_digest": "t" * 64,
        "mode": "Speculative",
        "arrived": 1000.0,
        "finished": 1001.0,
    }
    return Trace(TraceHeader(**(fields | header)), tensors)
