"""Text of a request as its tokens come: whole characters only, and stop strings.

A token may end in the middle of a UTF-8 character; such bytes decode to U+FFFD until the rest has come, so text that
ends with it is held back. Text that could be the beginning of a stop string is held back too.
"""

from collections.abc import Sequence as Items
from typing import Protocol

_REPLACEMENT = "\ufffd"
# Tokens of the prompt decoded in front of the output, so that tokenizers that strip a leading space keep it.
_CONTEXT = 4


class Decodes(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: list[int]) -> str:
        """Text of tokens, special tokens left out."""
        ...


class TextStream:
    """Turns a growing list of output tokens into text."""

    def __init__(self, tokenizer: Decodes, prompt: Items[int], stops: tuple[str, ...] = ()) -> None:
        self.text = ""
        self.stopped_by: str | None = None
        self._tokenizer = tokenizer
        self._stops = stops
        self._ids = list(prompt[-_CONTEXT:])
        if tokenizer.decode(self._ids).endswith(_REPLACEMENT):
            self._ids = []
        self._prefix = 0  # tokens before this are needed by nobody any more
        self._read = len(self._ids)  # tokens before this are in `text`
        self._emitted = 0

    def push(self, tokens: list[int]) -> int:
        """Take new tokens; returns how many were used: fewer than given when a stop string was completed."""
        if not tokens:
            return 0
        if not self._stops:
            self._ids.extend(tokens)
            self._decode(final=False)
            return len(tokens)
        for used, token in enumerate(tokens, start=1):
            self._ids.append(token)
            start = len(self.text)
            self._decode(final=False)
            if self._find_stop(start):
                return used
        return len(tokens)

    def finish(self) -> None:
        """No token will follow: take what was held back."""
        if self.stopped_by is None:
            start = len(self.text)
            self._decode(final=True)
            self._find_stop(start)

    def take(self, final: bool = False) -> str:
        """Text that was not taken yet and can be shown."""
        end = len(self.text) if final or self.stopped_by is not None else len(self.text) - self._held_back()
        piece = self.text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        return piece

    def _decode(self, final: bool) -> None:
        before = self._tokenizer.decode(self._ids[self._prefix : self._read])
        now = self._tokenizer.decode(self._ids[self._prefix :])
        if len(now) <= len(before):
            return
        end = len(self._ids)
        if not final and now.endswith(_REPLACEMENT):
            end, now = self._settled(now)
            if len(now) <= len(before):
                return
        self.text += now[len(before) :]
        self._prefix, self._read = self._read, end

    def _settled(self, now: str) -> tuple[int, str]:
        """How many tokens, and which text of `now`, can no longer change, when its last character may be incomplete.

        A character has at most four bytes, so only the last three tokens can belong to one that is still incomplete.
        If decoding the tokens before and after a cut gives the same text as decoding all at once, the cut is between
        characters (or between bytes that never become one), and what lies before it is settled.
        """
        for cut in range(len(self._ids) - 1, max(self._read, len(self._ids) - 4), -1):
            left = self._tokenizer.decode(self._ids[self._prefix : cut])
            right = self._tokenizer.decode(self._ids[cut:])
            # Special tokens are no text: after them alone, the bytes on the left may still go on.
            if right and left + right == now:
                return cut, left
        return self._read, ""

    def _find_stop(self, start: int) -> bool:
        """Look for the earliest stop string that ends after `start`; cut the text before it."""
        found = [
            (place, stop) for stop in self._stops if (place := self.text.find(stop, max(0, start - len(stop) + 1))) >= 0
        ]
        if not found:
            return False
        place, self.stopped_by = min(found)
        self.text = self.text[:place]
        return True

    def _held_back(self) -> int:
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
