"""Making a trace of a finished request (layout: contracts/trace.py). Pure tensor work; sending is the sender's."""

import torch
from torch import Tensor

from speculator_runtime.contracts.control import DecodeMode
from speculator_runtime.contracts.trace import TraceHeader
from speculator_runtime.traces.codec import Trace

from .request import Request
from .sequence import Sequence
from .target import Target

_WIRE = torch.bfloat16


def build_trace(
    request: Request, features: Tensor, target: Target, mode: DecodeMode, draft_version: int, finished: float
) -> Trace:
    """The trace of a request whose rows are still in its slot.

    features: the rows of its slot, [L, 3H]. finished: Unix seconds.
    Rows computed past the last committed token (a stop inside an accepted path) are left out.
    """
    sequence = request.sequence
    total = len(sequence.tokens)
    rows = min(sequence.computed, total)
    header = TraceHeader(
        request_id=request.id,
        domain=request.labels.domain,
        prompt_length=sequence.prompt_length,
        total_length=total,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        capture_layers=target.capture_layers,
        draft_version=draft_version,
        target_digest=target.digest,
        mode=mode.value,
        verify_steps=sequence.verify_steps,
        accepted_draft_tokens=sequence.drafts_accepted,
        temperature=sequence.params.temperature,
        opt_out=request.labels.opt_out,
        arrived=request.arrived,
        finished=finished,
    )
    tensors = {
        "tokens": torch.tensor(sequence.tokens, dtype=torch.int32),
        "hidden_rows": torch.arange(rows, dtype=torch.int32),
        "hidden": features[:rows].to("cpu", _WIRE, copy=True),
        **_teacher(sequence, rows),
    }
    if sequence.rejected:
        tensors |= _rejected(sequence)
    return Trace(header, tensors)


def _teacher(sequence: Sequence, rows: int) -> dict[str, Tensor]:
    kept = sequence.teacher
    positions = torch.cat([torch.arange(part.first, part.first + len(part.lse)) for part in kept]).to(torch.int32)
    inside = positions < rows
    return {
        "teacher_rows": positions[inside],
        "teacher_ids": torch.cat([part.ids for part in kept]).cpu()[inside],
        "teacher_logits": torch.cat([part.logits for part in kept]).to("cpu", _WIRE)[inside],
        "teacher_lse": torch.cat([part.lse for part in kept]).cpu()[inside],
    }


def _rejected(sequence: Sequence) -> dict[str, Tensor]:
    """Rejected nodes of all verify steps, one after another; parents become indices into the whole."""
    steps: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    tokens: list[int] = []
    for step in sequence.rejected:
        offset = len(steps)
        steps += [step.step] * len(step.tokens)
        positions += step.positions
        parents += [parent if parent < 0 else parent + offset for parent in step.parents]
        tokens += step.tokens
    return {
        "tree_step": torch.tensor(steps, dtype=torch.int32),
        "tree_position": torch.tensor(positions, dtype=torch.int32),
        "tree_parent": torch.tensor(parents, dtype=torch.int32),
        "tree_tokens": torch.tensor(tokens, dtype=torch.int32),
        "tree_hidden": torch.cat([step.features for step in sequence.rejected]).to("cpu", _WIRE),
        "tree_teacher_ids": torch.cat([step.teacher.ids for step in sequence.rejected]).cpu(),
        "tree_teacher_logits": torch.cat([step.teacher.logits for step in sequence.rejected]).to("cpu", _WIRE),
        "tree_teacher_lse": torch.cat([step.teacher.lse for step in sequence.rejected]).cpu(),
    }
