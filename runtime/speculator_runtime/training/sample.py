"""A training sample: a trace, cut down to the rows that can be trained on."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from speculator_runtime.contracts.trace import TraceHeader
from speculator_runtime.traces.codec import Trace


class UnusableTrace(Exception):
    """A trace holds nothing to train on; counted, never fatal. `reason` is a label for the counter."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(eq=False)
class Sample:
    """T tokens of one request; hidden rows are the contiguous positions [start, start + R)."""

    header: TraceHeader
    tokens: Tensor  # int32 [T]
    start: int
    hidden: Tensor  # [R, 3H]
    teacher_rows: Tensor  # int32 [Q], ascending positions
    teacher_ids: Tensor  # int32 [Q, k]
    teacher_logits: Tensor  # [Q, k]
    teacher_lse: Tensor  # float32 [Q]
    uses: int = field(default=0)  # steps that have trained on it; 0: fresh

    @property
    def nbytes(self) -> int:
        """Bytes its tensors hold."""
        tensors = (self.tokens, self.hidden, self.teacher_rows, self.teacher_ids, self.teacher_logits, self.teacher_lse)
        return sum(t.untyped_storage().nbytes() for t in tensors)

    @property
    def output(self) -> Tensor:
        """The tokens that the target wrote, int32 [T - P]."""
        return self.tokens[self.header.prompt_length :]


def first_row(sample: Sample) -> int:
    """Lowest position that serving drafts from: row P - 1 holds the first output token and the last prompt position."""
    return max(sample.header.prompt_length - 1, sample.start)


def from_trace(trace: Trace, max_length: int) -> Sample:
    """A sample of a trace, at most its last `max_length` positions; raises UnusableTrace."""
    header, tensors = trace.header, trace.tensors
    start, hidden = _last_run(tensors["hidden_rows"], tensors["hidden"])
    cut = max(0, header.total_length - max_length - start)
    if cut:
        start, hidden = start + cut, hidden[cut:].clone()
    rows = tensors["teacher_rows"]
    sample = Sample(
        header=header,
        tokens=tensors["tokens"],
        start=start,
        hidden=hidden,
        teacher_rows=rows,
        teacher_ids=tensors["teacher_ids"],
        teacher_logits=tensors["teacher_logits"],
        teacher_lse=tensors["teacher_lse"],
    )
    first = first_row(sample)
    # Row t is supervised by the teacher at t + 1, and needs its own hidden row.
    usable = (rows > first) & (rows <= start + hidden.shape[0]) if tensors["teacher_ids"].shape[1] else rows < 0
    if not bool(usable.any()):
        raise UnusableTrace(
            "NothingSupervised",
            f"request {header.request_id}: {hidden.shape[0]} hidden rows from {start} and {rows.numel()} teacher rows "
            f"leave no row to train on (prompt of {header.prompt_length} tokens, {header.total_length} in all)",
        )
    return sample


def _last_run(rows: Tensor, hidden: Tensor) -> tuple[int, Tensor]:
    """First position and hidden rows of the last run of consecutive positions (a cached prefix has none)."""
    if rows.numel() == 0:
        return 0, hidden
    breaks = torch.nonzero(rows[1:] != rows[:-1] + 1).flatten()
    begin = int(breaks[-1]) + 1 if breaks.numel() else 0
    return int(rows[begin]), hidden[begin:].clone() if begin else hidden
