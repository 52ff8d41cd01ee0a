"""Several samples as one packed batch for the TTT unroll: no padding, index tensors worked out beforehand.

Positions of one sample: tokens x[0..T), features g[start..start+R), teacher rows p[.] where kept. Row t of the batch
holds the embedding of x[t + 1] and the features g[t], and predicts x[t + 2], so its teacher is the row at t + 1. At TTT
step k the same row holds the embedding of x[t + 1 + k], sits at RoPE position t + k, and its teacher is at t + 1 + k.

Context rows are all rows with features and a token to their right: they give keys and values only. Query rows are the
rows that serving drafts from (t >= P - 1) and that some teacher supervises. At step k only those with
t + 1 + k <= last teacher position go on: per sample a prefix of its query rows, so one slice a sample serves each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .losses import TeacherRows, restrict
from .sample import Sample, first_row


@dataclass(frozen=True)
class StepRows:
    """The query rows that are active at one TTT step, n in all."""

    keep: Tensor  # int64 [n], index into the rows active at the step before (into the query rows at step 0)
    lengths: tuple[int, ...]  # active rows of each sample
    tokens: Tensor  # int64 [n], x[t + 1 + k]
    positions: Tensor  # int64 [n], t + k
    supervised: Tensor  # int64 [m], index into the active rows: teacher kept, its argmax in the draft vocabulary
    teacher: Tensor  # int64 [m], index into the teacher rows
    next_slots: Tensor  # int64 [m], slot of the committed token x[t + 2 + k], -1: none


@dataclass(frozen=True)
class Batch:
    """Packed rows of B samples: C context rows, S query rows."""

    context_lengths: tuple[int, ...]
    context_tokens: Tensor  # int64 [C], x[t + 1]
    context_positions: Tensor  # int64 [C], t
    features: Tensor  # [C, 3H]
    query_rows: Tensor  # int64 [S], index into the context rows
    query_offsets: tuple[int, ...]  # per sample: its first query row's index among its own context rows
    steps: tuple[StepRows, ...]
    teacher: TeacherRows
    tokens: int  # tokens of the samples, for throughput

    @property
    def supervised(self) -> list[int]:
        """Supervised rows at each step."""
        return [step.supervised.numel() for step in self.steps]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""

        def move(value: Tensor) -> Tensor:
            return value.to(device, non_blocking=True)

        steps = tuple(
            StepRows(
                move(s.keep),
                s.lengths,
                move(s.tokens),
                move(s.positions),
                move(s.supervised),
                move(s.teacher),
                move(s.next_slots),
            )
            for s in self.steps
        )
        return Batch(
            self.context_lengths,
            move(self.context_tokens),
            move(self.context_positions),
            move(self.features),
            move(self.query_rows),
            self.query_offsets,
            steps,
            TeacherRows(*(move(t) for t in self.teacher)),
            self.tokens,
        )


@dataclass(frozen=True)
class _Rows:
    """One sample's rows: context [start, start + context), query [first, first + lengths[k]) at step k."""

    start: int
    context: int
    first: int
    lengths: tuple[int, ...]


def _rows(sample: Sample, steps: int) -> _Rows:
    total = sample.tokens.numel()
    context = min(sample.hidden.shape[0], total - 1 - sample.start)
    first = first_row(sample)
    last_teacher = int(sample.teacher_rows[-1])
    counts = [min(last_teacher - 1 - k, sample.start + context - 1) - first + 1 for k in range(steps)]
    return _Rows(sample.start, context, first, tuple(max(0, count) for count in counts))


def collate(
    samples: Sequence[Sample], steps: int, slots: Tensor, features_dtype: torch.dtype, wide: torch.dtype = torch.float32
) -> Batch:
    """Pack samples for an unroll of `steps` steps; `slots` is the draft vocabulary's map, int64 [V].

    A step's teacher row counts when it was kept and the target's argmax has a slot; rows without are carried on, as
    later steps need them, but not supervised.
    """
    rows = [_rows(sample, steps) for sample in samples]
    width = max(sample.teacher_ids.shape[1] for sample in samples)
    teacher = restrict(
        torch.cat([_widen(s.teacher_ids.long(), width) for s in samples]),
        # A sample with fewer known logits gets known tokens of no mass.
        torch.cat([_widen(s.teacher_logits.to(wide), width, float("-inf")) for s in samples]),
        torch.cat([s.teacher_lse for s in samples]),
        slots,
        wide,
    )
    teacher_offsets = _starts([s.teacher_rows.numel() for s in samples])
    context_offsets = _starts([r.context for r in rows])
    tokens = [s.tokens.long() for s in samples]
    maps = [_teacher_map(s, offset) for s, offset in zip(samples, teacher_offsets, strict=True)]
    return Batch(
        context_lengths=tuple(r.context for r in rows),
        context_tokens=torch.cat([t[r.start + 1 : r.start + 1 + r.context] for t, r in zip(tokens, rows, strict=True)]),
        context_positions=torch.cat([torch.arange(r.start, r.start + r.context) for r in rows]),
        features=torch.cat([s.hidden[: r.context].to(features_dtype) for s, r in zip(samples, rows, strict=True)]),
        query_rows=torch.cat(
            [
                torch.arange(r.lengths[0]) + (offset + r.first - r.start)
                for r, offset in zip(rows, context_offsets, strict=True)
            ]
        ),
        query_offsets=tuple(r.first - r.start for r in rows),
        steps=tuple(_step(k, rows, tokens, maps, teacher, slots) for k in range(steps)),
        teacher=teacher,
        tokens=sum(s.tokens.numel() for s in samples),
    )


def _step(
    k: int, rows: list[_Rows], tokens: list[Tensor], maps: list[Tensor], teacher: TeacherRows, slots: Tensor
) -> StepRows:
    before = [r.lengths[k - 1] if k else r.lengths[0] for r in rows]
    keep = [torch.arange(r.lengths[k]) + offset for r, offset in zip(rows, _starts(before), strict=True)]
    at = [torch.arange(r.lengths[k]) + r.first for r in rows]  # t of every active row
    teacher_index = torch.cat([m[t + 1 + k] for m, t in zip(maps, at, strict=True)])
    next_slots = torch.cat([_next_slots(x, t + 2 + k, slots) for x, t in zip(tokens, at, strict=True)])
    in_vocabulary = teacher.best[teacher_index.clamp_min(0)] >= 0
    supervised = torch.nonzero((teacher_index >= 0) & in_vocabulary).flatten()
    return StepRows(
        keep=torch.cat(keep),
        lengths=tuple(r.lengths[k] for r in rows),
        tokens=torch.cat([x[t + 1 + k] for x, t in zip(tokens, at, strict=True)]),
        positions=torch.cat(at) + k,
        supervised=supervised,
        teacher=teacher_index[supervised],
        next_slots=next_slots[supervised],
    )


def _next_slots(tokens: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
    """Slots of the tokens at these positions; -1 past the end."""
    inside = positions < tokens.numel()
    return torch.where(inside, slots[tokens[positions.clamp_max(tokens.numel() - 1)]], -1)


def _teacher_map(sample: Sample, offset: int) -> Tensor:
    """Position -> index of its teacher row in the batch, -1 where none was kept; int64 [T]."""
    result = torch.full((sample.tokens.numel(),), -1, dtype=torch.int64)
    result[sample.teacher_rows.long()] = torch.arange(sample.teacher_rows.numel()) + offset
    return result


def _widen(rows: Tensor, width: int, value: float = 0) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=value) if rows.shape[1] < width else rows


def _starts(lengths: list[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths))]
