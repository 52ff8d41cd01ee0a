"""Teacher rows of traces: the top-k logits of a row and the log-sum-exp of all of it."""

import torch
from torch import Tensor

from .sequence import TeacherRows


def teacher_rows(logits: Tensor, top_k: int, first: int) -> TeacherRows:
    """logits [rows, V], the first of them at position `first` of the request."""
    top = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return TeacherRows(first, top.indices.to(torch.int32), top.values, wide.logsumexp(-1).float())
