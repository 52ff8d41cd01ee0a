"""The training-time test (TTT) forward: the drafter unrolled over its own outputs, as serving will run it.

Step 0 reads the target's features; step k reads the output of step k - 1 at the same row, with the true token. A query
row sees the keys of step 0 up to its own position and only its own keys of later steps: what a draft chain sees.
Only query rows run the layer; context rows give keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from speculator_runtime.drafter.model import Eagle3Drafter

from .batch import Batch
from .losses import head_loss


@dataclass(frozen=True)
class UnrollResult:
    """Loss and counts of an unroll."""

    loss: Tensor  # scalar, differentiable
    step_losses: Tensor  # [steps], sum over the supervised rows of each step, no gradient
    accepted: Tensor  # int64, draft tokens that a chain would have had accepted, teacher-forced
    chains: int  # rows a chain started from


def unroll(
    drafter: Eagle3Drafter,
    embedding: Tensor,
    batch: Batch,
    kind: str,
    weights: Sequence[float],
    compute_dtype: torch.dtype,
) -> UnrollResult:
    """Loss of a batch: sum over steps k of weights[k] * (sum of the supervised rows' losses).

    embedding: the target's, [V, H], no gradient. weights[k] holds the step's weight divided by the number of supervised
    rows, so that the loss is an average whatever the packing (`learner` works it out over micro-batches).
    """
    narrow = compute_dtype if compute_dtype == torch.bfloat16 else None
    with torch.autocast(batch.features.device.type, dtype=narrow, enabled=narrow is not None):
        fused = drafter.fuse(batch.features)
        both = drafter.layer_input(functional.embedding(batch.context_tokens, embedding).to(fused.dtype), fused)
        keys, values = drafter.keys_values(both[None], batch.context_positions[None])
        contexts = list(zip(_split(keys, batch.context_lengths), _split(values, batch.context_lengths), strict=True))
        hidden = fused[batch.query_rows]
        inputs = both[batch.query_rows]
        own: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in contexts]
        outputs: list[Tensor] = []
        for k, rows in enumerate(batch.steps):
            if k:
                hidden = hidden[rows.keep]
                inputs = drafter.layer_input(functional.embedding(rows.tokens, embedding).to(hidden.dtype), hidden)
            queries = _split(drafter.queries(inputs[None], rows.positions[None]), rows.lengths)
            if k:
                new_keys, new_values = drafter.keys_values(inputs[None], rows.positions[None])
                for (held_keys, held_values), key, value in zip(
                    own, _split(new_keys, rows.lengths), _split(new_values, rows.lengths), strict=True
                ):
                    held_keys.append(key)
                    held_values.append(value)
            attended = [
                chain_attention(query, *context, *held, offset)
                for query, context, held, offset in zip(queries, contexts, own, batch.query_offsets, strict=True)
            ]
            hidden = drafter.finish(torch.cat(attended, dim=1)[None], hidden[None])[0]
            outputs.append(hidden[rows.supervised])
        normed = drafter.norm(torch.cat(outputs))
    # One product with the head for the rows of all steps.
    counts = batch.supervised
    result = head_loss(
        kind,
        normed,
        drafter.lm_head.weight[: drafter.used],
        batch.teacher.select(torch.cat([rows.teacher for rows in batch.steps])),
        torch.cat([normed.new_full((count,), weight) for count, weight in zip(counts, weights, strict=True)]),
        torch.cat([rows.next_slots for rows in batch.steps]),
        compute_dtype,
    )
    return UnrollResult(
        loss=result.loss,
        step_losses=torch.stack([part.sum() for part in torch.split(result.rows, counts)]),
        accepted=_accepted(batch, torch.split(result.argmax, counts)),
        chains=batch.query_rows.numel(),
    )


def _accepted(batch: Batch, argmax: Sequence[Tensor]) -> Tensor:
    """Draft tokens that chains from every query row would have had accepted, if all later tokens were as they are.

    A row without a teacher and a token outside the vocabulary are misses.
    """
    alive = torch.ones(batch.query_rows.shape[0], dtype=torch.bool, device=batch.query_rows.device)
    total = torch.zeros((), dtype=torch.int64, device=batch.query_rows.device)
    for rows, proposed in zip(batch.steps, argmax, strict=True):
        hits = torch.zeros_like(rows.positions, dtype=torch.bool)
        hits[rows.supervised] = proposed == batch.teacher.best[rows.teacher]
        alive = alive[rows.keep] & hits
        total = total + alive.sum()
    return total


def _split(tensor: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """[1, heads, sum(lengths), Dh] -> [heads, length, Dh] for each sample."""
    return torch.split(tensor[0], list(lengths), dim=1)


def chain_attention(
    query: Tensor, keys: Tensor, values: Tensor, own_keys: list[Tensor], own_values: list[Tensor], offset: int
) -> Tensor:
    """Attention of one sample's n query rows [Nh, n, Dh] -> [Nh, n, Dh].

    keys, values: step 0, [Nkv, m, Dh]; query row i sees those up to offset + i. own_keys, own_values: of later steps,
    each [Nkv, >= n, Dh], of which row i sees row i only. Softmax in float32 (float64 stays).
    """
    heads, rows, size = query.shape
    kv_heads, context, _ = keys.shape
    groups = heads // kv_heads
    grouped = (query * size**-0.5).view(kv_heads, groups, rows, size)
    shared = grouped.reshape(kv_heads, groups * rows, size) @ keys.transpose(1, 2)
    visible = torch.arange(context, device=query.device) <= offset + torch.arange(rows, device=query.device)[:, None]
    scores = [shared.view(kv_heads, groups, rows, context).masked_fill(~visible, float("-inf"))]
    scores += [(grouped * key[:, None, :rows]).sum(-1, keepdim=True) for key in own_keys]
    joined = torch.cat(scores, dim=-1) if own_keys else scores[0]
    weights = torch.softmax(joined, dim=-1, dtype=torch.float64 if joined.dtype == torch.float64 else torch.float32)
    weights = weights.to(values.dtype)
    output = weights[..., :context].reshape(kv_heads, groups * rows, context) @ values
    output = output.view(kv_heads, groups, rows, size)
    for j, value in enumerate(own_values):
        output = output + weights[..., context + j, None] * value[:, None, :rows]
    return output.reshape(heads, rows, size)
