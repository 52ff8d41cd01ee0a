"""The draft vocabulary: which target token each row of the drafter's head stands for.

Of one size within a lineage of versions. `full` is the target's whole vocabulary in its own order. Otherwise the map
has a fixed number of slots; used slots are a prefix [0, used) and never change their token; free slots fill as tokens
appear, the most frequent first, ties by token id.

How a free slot stays silent in SGLang's format, which has neither a count of used slots nor a bias in the head:
- it repeats slot 0's token in `d2t`, and `t2d` marks used tokens only. So `used = t2d.sum()` can be read back and
  checked, and a free slot that were proposed after all would propose a token that the map has;
- its head row is written as the MEAN of the used rows (`silent_rows`). Its logit is then the mean of the used logits:
  never above the largest, and far below it for any drafter that has learnt something, so that it is not drafted.
Our own engine and the trainer compute the head over the used prefix only.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

FULL = "full"
GROWING = "fixed-size-growing"


class VocabularyMapError(Exception):
    """d2t and t2d contradict each other, or do not fit the target."""


class VocabularyMap:
    """Slots of the draft vocabulary and the target tokens they stand for."""

    def __init__(self, vocab_size: int, size: int, tokens: Iterable[int]) -> None:
        """Map of `size` slots for a target of `vocab_size` tokens, the first slots used by `tokens` in that order."""
        held = torch.tensor(list(tokens), dtype=torch.int64)
        if not 1 <= size <= vocab_size:
            raise VocabularyMapError(f"a draft vocabulary of {size} slots does not fit a target of {vocab_size} tokens")
        if not 1 <= held.numel() <= size:
            raise VocabularyMapError(f"{held.numel()} tokens do not fit {size} slots; at least one slot must be used")
        if int(held.min()) < 0 or int(held.max()) >= vocab_size:
            raise VocabularyMapError(f"a token of the map lies outside the target's vocabulary of {vocab_size}")
        self.vocab_size = vocab_size
        self.size = size
        self.used = held.numel()
        self._tokens = torch.full((size,), int(held[0]), dtype=torch.int64)
        self._tokens[: self.used] = held
        self._slots = torch.full((vocab_size,), -1, dtype=torch.int64)
        self._slots[held] = torch.arange(self.used)
        if int((self._slots >= 0).sum()) != self.used:
            raise VocabularyMapError("a token has more than one slot of the map")

    @classmethod
    def initial(cls, vocab_size: int, size: int, first: Iterable[int] = ()) -> "VocabularyMap":
        """The map before any request was seen: everything (`full`), or the tokens in `first` (else token 0).

        first: tokens that are surely wanted, such as the target's end-of-sequence ids.
        """
        if size >= vocab_size:
            return cls(vocab_size, vocab_size, range(vocab_size))
        wanted = list(dict.fromkeys(t for t in first if 0 <= t < vocab_size))[:size]
        return cls(vocab_size, size, wanted or [0])

    @classmethod
    def from_d2t(cls, d2t: Tensor, t2d: Tensor) -> "VocabularyMap":
        """Read a map back from a checkpoint's d2t int64 [Vd] and t2d bool [V]; raises VocabularyMapError.

        Also reads maps of other trainers: those have no free slots.
        """
        tokens = d2t + torch.arange(d2t.numel())
        used = int(t2d.sum())
        if used < 1 or used > d2t.numel():
            raise VocabularyMapError(f"t2d marks {used} tokens, but d2t has {d2t.numel()} slots")
        result = cls(t2d.numel(), d2t.numel(), tokens[:used].tolist())
        if not torch.equal(result.t2d(), t2d):
            raise VocabularyMapError("t2d marks other tokens than d2t's used slots; write both from one map")
        if not torch.equal(result.d2t(), d2t):
            raise VocabularyMapError(f"slots from {used} on are free and must repeat the token of slot 0")
        return result

    @property
    def kind(self) -> str:
        """`full` or `fixed-size-growing`, as the manifest names it."""
        return FULL if self.size == self.vocab_size else GROWING

    @property
    def free(self) -> int:
        """Slots without a token."""
        return self.size - self.used

    @property
    def tokens(self) -> Tensor:
        """Target token of every slot, int64 [Vd] (SGLang's hot_token_id); free slots repeat slot 0's."""
        return self._tokens

    @property
    def slots(self) -> Tensor:
        """Slot of every target token, int64 [V]; -1 where the map has none."""
        return self._slots

    def d2t(self) -> Tensor:
        """Target id minus draft id, int64 [Vd]."""
        return self._tokens - torch.arange(self.size)

    def t2d(self) -> Tensor:
        """Whether a target token has a slot, bool [V]."""
        return self._slots >= 0

    def grow(self, counts: Tensor) -> range:
        """Fill free slots with tokens that have none yet and a positive count; returns the slots filled.

        counts: int64 [V], how often the target wrote each token. Most frequent first, ties by id.
        """
        start = self.used
        if counts.shape != (self.vocab_size,):
            raise ValueError(f"counts have shape {tuple(counts.shape)}, expected ({self.vocab_size},)")
        new = torch.nonzero((counts > 0) & (self._slots < 0)).flatten()
        # nonzero is ascending by id and the sort is stable: ties stay in order of id.
        new = new[torch.sort(counts[new], descending=True, stable=True).indices][: self.free]
        end = start + new.numel()
        self._tokens[start:end] = new
        self._slots[new] = torch.arange(start, end)
        self.used = end
        return range(start, end)

    def copy(self) -> "VocabularyMap":
        """An independent copy."""
        return VocabularyMap(self.vocab_size, self.size, self._tokens[: self.used].tolist())


def silent_rows(head: Tensor, used: int) -> Tensor:
    """Head [Vd, H] with every free row replaced by the mean of the used rows: its logit is never the largest."""
    if used == head.shape[0]:
        return head
    result = head.clone()
    result[used:] = head[:used].double().mean(dim=0).to(head.dtype)
    return result
