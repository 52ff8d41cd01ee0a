"""Losses of draft rows against the target's distribution, fused with the draft head.

p: the target's distribution over the draft vocabulary, normalised again; q: the drafter's. Named by formula:

- forward KL:  KL(p || q) = sum_i p_i (log p_i - log q_i)
- reverse KL:  KL(q || p) = sum_i q_i (log q_i - log p_i)
- reverse KL + next token: the above, and -log q[x] for the token x that was committed, where x has a slot.

A teacher row holds the k largest logits and the log-sum-exp of the full row, so the mass of every known token is exact
and so is what remains. Known tokens outside the draft vocabulary are taken out of the log-sum-exp; the tokens beyond
the k known are one event, the tail: both divergences are taken over {known tokens in the draft vocabulary, tail}. With
k = V there is no tail and the divergence is the plain one.

The head is part of the loss so that [rows, U] is never kept for the backward pass: the gradient with respect to the
logits is known in closed form as soon as they are, chunk by chunk.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits and log-sum-exp come in float32 at best: of magnitude 40 their difference is good to some 4e-6 of mass.
_LEAST_TAIL = 1e-5
_LEAST_TAIL_Q = 1e-30
_CHUNK_ELEMENTS = 1 << 23

FORWARD_KL = "ForwardKL"
REVERSE_KL = "ReverseKL"
REVERSE_KL_NEXT_TOKEN = "ReverseKLNextToken"
LOSSES = (FORWARD_KL, REVERSE_KL, REVERSE_KL_NEXT_TOKEN)


class TeacherRows(NamedTuple):
    """R teacher rows restricted to a draft vocabulary; k known tokens each. Known tokens without a slot are masked."""

    slots: Tensor  # int64 [R, k], 0 where masked
    known: Tensor  # bool [R, k]
    log_p: Tensor  # float [R, k], 0 where masked
    log_tail: Tensor  # float [R], log of the tail's mass
    best: Tensor  # int64 [R], slot of the target's own argmax; -1: it has none

    def select(self, rows: Tensor) -> "TeacherRows":
        """The rows with these indices."""
        return TeacherRows(*(tensor[rows] for tensor in self))


class HeadLossResult(NamedTuple):
    """What the fused head and loss yield."""

    loss: Tensor  # scalar, sum of row_weights * rows; differentiable
    rows: Tensor  # [R], loss of each row, no gradient
    argmax: Tensor  # int64 [R], slot the drafter would propose


def restrict(
    ids: Tensor, logits: Tensor, lse: Tensor, slots: Tensor, dtype: torch.dtype = torch.float32
) -> TeacherRows:
    """Teacher rows (ids and logits [R, k], lse [R]) seen through a draft vocabulary (`slots` int64 [V], -1: none).

    Stored logits are rounded (bfloat16: by up to 0.4%), so the known mass may come out above one: then there is no tail
    and the known part is normalised.
    """
    mapped = slots[ids.long()]
    known = (mapped >= 0) & torch.isfinite(logits)
    log_mass = logits.to(dtype) - lse.to(dtype)[:, None]
    mass = log_mass.exp()
    inside = torch.where(known, mass, 0.0).sum(-1)
    outside = torch.where(known, 0.0, mass).sum(-1)
    # With every slot among the known tokens, all that is unknown lies outside.
    all_known = known.sum(-1) == (slots >= 0).sum()
    total = torch.where(all_known, inside, torch.maximum(1.0 - outside, inside)).clamp_min(torch.finfo(dtype).tiny)
    tail = (1.0 - inside / total).clamp_min(_LEAST_TAIL)
    log_p = torch.where(known, log_mass - total.log()[:, None], 0.0)
    return TeacherRows(mapped.clamp_min(0), known, log_p, tail.log(), mapped[:, 0])


def head_loss(
    kind: str,
    normed: Tensor,
    head: Tensor,
    teacher: TeacherRows,
    row_weights: Tensor,
    next_slots: Tensor,
    compute_dtype: torch.dtype,
) -> HeadLossResult:
    """Draft logits and their loss, sum over rows of row_weights * loss.

    normed: [R, H] after the final norm; head: [U, H], the used rows; row_weights: [R]; next_slots: int64 [R], slot of
    the committed token, -1: none (used by the next-token term only). Matrix products run in compute_dtype, everything
    else in float32 (float64 when compute_dtype is).
    """
    if kind not in LOSSES:
        raise ValueError(f"loss {kind!r} is unknown; one of {', '.join(LOSSES)}")
    loss, rows, argmax = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        kind, normed, head, teacher, row_weights, next_slots, compute_dtype
    )
    return HeadLossResult(loss, rows, argmax)


class _HeadLoss(torch.autograd.Function):
    """Computes the gradients of `normed` and `head` in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        normed: Tensor,
        head: Tensor,
        teacher: TeacherRows,
        row_weights: Tensor,
        next_slots: Tensor,
        compute_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.float64 if compute_dtype == torch.float64 else torch.float32
        with torch.autocast(normed.device.type, enabled=False):
            inputs, weight = normed.detach().to(compute_dtype), head.detach().to(compute_dtype)
            input_gradient = torch.empty_like(inputs)
            # Accumulated over chunks, so in the wide dtype.
            weight_gradient = torch.zeros_like(weight, dtype=wide)
            losses, argmax = [], []
            step = max(1, _CHUNK_ELEMENTS // max(1, weight.shape[0]))
            for start in range(0, inputs.shape[0], step):
                at = slice(start, start + step)
                logits = (inputs[at] @ weight.T).to(wide)
                argmax.append(logits.argmax(-1))
                part = TeacherRows(*(tensor[at] for tensor in teacher))
                rows, gradient = loss_and_gradient(kind, logits, part, next_slots[at])
                losses.append(rows)
                gradient = gradient.mul_(row_weights[at, None].to(wide)).to(compute_dtype)
                input_gradient[at] = gradient @ weight
                weight_gradient += (gradient.T @ inputs[at]).to(wide)
        ctx.save_for_backward(input_gradient.to(normed.dtype), weight_gradient.to(head.dtype))
        rows = torch.cat(losses) if losses else normed.new_zeros(0, dtype=wide)
        best = torch.cat(argmax) if argmax else normed.new_zeros(0, dtype=torch.int64)
        ctx.mark_non_differentiable(rows, best)
        return (rows * row_weights.to(wide)).sum(), rows, best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        input_gradient, weight_gradient = ctx.saved_tensors
        return None, input_gradient * grad, weight_gradient * grad, None, None, None, None


def loss_and_gradient(kind: str, logits: Tensor, teacher: TeacherRows, next_slots: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each row [R] and its gradient with respect to the draft logits [R, U]. `logits` is overwritten.

    With group g (a known token, or the tail), p_g and q_g its masses, and q_j the probability of a token j in g:
    forward KL has d/dlogit_j = q_j (1 - p_g / q_g); reverse KL, of loss L, has q_j (log q_g - log p_g - L).
    """
    log_q = logits.sub_(torch.logsumexp(logits, -1, keepdim=True))
    known = teacher.known
    log_q_known = log_q.gather(-1, teacher.slots)
    next_log_q = log_q.gather(-1, next_slots.clamp_min(0)[:, None])[:, 0] if kind == REVERSE_KL_NEXT_TOKEN else None
    gradient = log_q.exp_()
    # Read back rather than computed again: the very same bits, so that taking them out leaves an exact zero. What is
    # left are the tail's probabilities, and their sum is exact where 1 - sum(known) would not be.
    q_known = torch.where(known, gradient.gather(-1, teacher.slots), 0.0)
    gradient.scatter_add_(-1, teacher.slots, -q_known)
    q_tail = gradient.sum(-1).clamp_min(_LEAST_TAIL_Q)
    log_q_tail = q_tail.log()
    if kind == FORWARD_KL:
        p_known, p_tail = torch.where(known, teacher.log_p.exp(), 0.0), teacher.log_tail.exp()
        rows = (p_known * torch.where(known, teacher.log_p - log_q_known, 0.0)).sum(-1)
        has_tail = q_tail > _LEAST_TAIL_Q
        rows = rows + torch.where(has_tail, p_tail * (teacher.log_tail - log_q_tail), 0.0)
        gradient.mul_((1.0 - p_tail / q_tail)[:, None])
        gradient.scatter_add_(-1, teacher.slots, q_known - p_known)
        return rows, gradient
    ratio_known = torch.where(known, log_q_known - teacher.log_p, 0.0)
    ratio_tail = log_q_tail - teacher.log_tail
    rows = (q_known * ratio_known).sum(-1) + q_tail * ratio_tail
    shift = -rows
    if next_log_q is not None:
        has_next = next_slots >= 0
        # -log q[x] adds q_j - [j = x] to the gradient.
        shift = shift + has_next.to(rows.dtype)
        rows = rows - torch.where(has_next, next_log_q, 0.0)
    gradient.mul_((ratio_tail + shift)[:, None])
    gradient.scatter_add_(-1, teacher.slots, q_known * (ratio_known + shift[:, None]))
    if next_log_q is not None:
        gradient.scatter_add_(-1, next_slots.clamp_min(0)[:, None], -has_next.to(gradient.dtype)[:, None])
    return rows, gradient


def step_weights(length: int, decay: float) -> list[float]:
    """Weight of each TTT step, decay**k, normalised to a sum of one."""
    raw = [math.pow(decay, k) for k in range(length)]
    return [weight / sum(raw) for weight in raw]
