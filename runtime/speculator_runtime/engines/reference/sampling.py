"""How a token is chosen from a row of target logits.

The randomness of an output token is a function of the request's seed and the token's index in the output, never of how
many rows were computed to get there. So a sampled request yields the same tokens whether it is decoded target-only,
speculatively, or with switches in between (up to the rounding of the logits): losslessness can be tested token by
token for sampling too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
# Nucleus sampling looks at this many of the most likely tokens first; a full sort of a large vocabulary takes
# milliseconds and is needed only for distributions flatter than this.
_NUCLEUS_FIRST = 1024


@dataclass(frozen=True)
class SamplingParams:
    """Temperature 0 is greedy. top_k 0 and top_p 1.0 keep everything."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for output token `index` of a request: splitmix64's finaliser over seed and index.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    state = _mix((seed & _MASK) ^ 0x9E3779B97F4A7C15)
    return (_mix((state + (index + 1) * 0x9E3779B97F4A7C15) & _MASK) >> 11) / (1 << 53)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def sample(logits: Tensor, params: SamplingParams, index: int) -> int:
    """The token for output index `index`: the inverse of the cumulative distribution at `uniform(seed, index)`.

    logits: one row [V]. Order of filters as in SGLang and transformers: temperature, then top_k, then top_p on what is
    left, renormalised.
    """
    if params.greedy:
        return int(logits.argmax())
    scaled = logits.double() / params.temperature
    point = uniform(params.seed, index)
    if not params.top_k and params.top_p >= 1.0:
        return _inverse(scaled.softmax(-1), point)
    count = scaled.numel()
    keep = min(params.top_k, count) if params.top_k else count
    first = min(keep, _NUCLEUS_FIRST) if params.top_p < 1.0 else keep
    total = scaled.topk(keep).values.logsumexp(-1) if params.top_k else scaled.logsumexp(-1)
    values, ids = _descending(scaled, first)
    probabilities = (values - total).exp()
    if params.top_p < 1.0 and first < keep and float(probabilities.sum()) < params.top_p:
        values, ids = _descending(scaled, keep)
        probabilities = (values - total).exp()
    if params.top_p < 1.0:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = torch.where(before < params.top_p, probabilities, 0.0)
    return int(ids[_inverse(probabilities, point)])


def _descending(scaled: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest, in an order that does not depend on how they were found: by value, ties by id."""
    if count == scaled.numel():
        values, ids = scaled.sort(descending=True, stable=True)
        return values, ids
    ids = scaled.topk(count).indices.sort().values
    values, order = scaled[ids].sort(descending=True, stable=True)
    return values, ids[order]


def _inverse(probabilities: Tensor, point: float) -> int:
    cumulative = probabilities.cumsum(-1)
    index = int(torch.searchsorted(cumulative, point * float(cumulative[-1]), right=True))
    if index < probabilities.numel() and float(probabilities[index]) > 0:
        return index
    # point * total rounded up to the total: the last token with any probability.
    return int(torch.nonzero(probabilities).flatten()[-1])
