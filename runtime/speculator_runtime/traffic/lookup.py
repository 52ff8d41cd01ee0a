"""What prompt lookup, with no training at all, would have done on the same tokens.

Prompt lookup (also called n-gram speculation) drafts by copying: it looks for the last `n` tokens of the context
earlier in the context and proposes what followed. Greedy target output is the same whatever drafts it, so its accept
length on a request can be counted afterwards from the tokens alone.

Convention, the same as for the drafter: accept length is tokens committed per verify step, the bonus token included.
The first output token comes from the prefill and belongs to no verify step. The longest n-gram wins (3, then 2, then
1), then its most recent occurrence that a whole chain follows, else the first one: kind to prompt lookup, as a baseline
has to be. A step without a match commits one token, as target-only decoding does.
It drafts a chain of the drafter's depth, no deeper, so that both spend the same verification.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_MATCH = 3


@dataclass(frozen=True)
class LookupCount:
    """Tokens committed and verify steps taken; add up over requests before dividing."""

    tokens: int
    steps: int

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify step; None without steps."""
        return self.tokens / self.steps if self.steps else None


def simulate(prompt: Sequence[int], output: Sequence[int], draft_tokens: int) -> LookupCount:
    """Count the verify steps that prompt lookup takes to write `output` after `prompt`.

    `prompt` and `output` are target token ids; `draft_tokens` is the length of the chain drafted per step (>= 1).
    """
    if draft_tokens < 1:
        raise ValueError(f"draft_tokens must be at least 1, got {draft_tokens}")
    tokens = [*prompt, *output]
    index = _NgramIndex(tokens)
    position = len(prompt) + 1  # tokens[:position] are committed; the prefill gave the first output token
    start, steps = position, 0
    while position < len(tokens):
        steps += 1
        accepted = 0
        source = index.continuation(position, draft_tokens)
        if source is not None:
            while (
                accepted < draft_tokens
                and source + accepted < position
                and position + accepted < len(tokens)
                and tokens[source + accepted] == tokens[position + accepted]
            ):
                accepted += 1
        position = min(position + accepted + 1, len(tokens))
    return LookupCount(tokens=max(0, len(tokens) - start), steps=steps)


class _NgramIndex:
    """Earlier occurrences of the trailing n-gram, extended as the committed length grows."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0

    def continuation(self, length: int, wanted: int) -> int | None:
        """Where the text after the best earlier match of tokens[:length]'s tail starts; None without a match."""
        for end in range(self._indexed + 1, length):  # the trailing n-gram itself has no continuation yet
            for n in range(1, min(LONGEST_MATCH, end) + 1):
                self._ends.setdefault(tuple(self._tokens[end - n : end]), []).append(end)
            self._indexed = end
        for n in range(min(LONGEST_MATCH, length), 0, -1):
            ends = self._ends.get(tuple(self._tokens[length - n : length]))
            if ends:
                return next((end for end in reversed(ends) if end + wanted <= length), ends[0])
        return None
