"""A request as the decoding loop sees it: tokens, limits, and how far target and drafter are with it.

Not for HTTP, text or statistics: those hold a `Sequence` and watch its `tokens` grow.
"""

from dataclasses import dataclass, field

from torch import Tensor

from .sampling import SamplingParams


@dataclass
class TeacherRows:
    """Teacher rows kept of one step for the trace: rows `first`.. of the request, top-k logits and log-sum-exp."""

    first: int
    ids: Tensor  # int32 [rows, k]
    logits: Tensor  # [rows, k]
    lse: Tensor  # float32 [rows]


@dataclass
class RejectedNodes:
    """Draft nodes of one verify step that the target did not choose (see contracts/trace.py)."""

    step: int
    positions: list[int]
    parents: list[int]  # among this step's rejected nodes; -1: a committed token
    tokens: list[int]
    features: Tensor  # [n, 3H]
    teacher: TeacherRows


@dataclass
class Sequence:
    """One request in the batch."""

    prompt_length: int
    tokens: list[int]
    max_new_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    stop_tokens: frozenset[int] = frozenset()
    capture: bool = False

    slot: int = -1
    computed: int = 0  # rows of the target's cache that are committed (prefill under way: below the prompt's length)
    drafted: int = 0  # rows of the drafter's cache that are valid ...
    drafter_generation: int = -1  # ... for these weights
    stopped: bool = False  # a stop token or the length limit was reached

    verify_steps: int = 0
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    teacher: list[TeacherRows] = field(default_factory=list)
    rejected: list[RejectedNodes] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """Tokens produced so far."""
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        """How many."""
        return len(self.tokens) - self.prompt_length

    @property
    def reservation(self) -> int:
        """Rows this request may come to need."""
        return self.prompt_length + self.max_new_tokens

    def commit(self, tokens: list[int]) -> list[int]:
        """Append what the target chose, up to a stop token or the length limit; returns what was appended."""
        taken: list[int] = []
        for token in tokens:
            taken.append(token)
            if token in self.stop_tokens or self.output_length + len(taken) >= self.max_new_tokens:
                self.stopped = True
                break
        self.tokens.extend(taken)
        return taken
