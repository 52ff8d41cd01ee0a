"""A request from HTTP to the decoding loop and back: its sequence, its labels, and where its updates go."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from .sequence import Sequence
from .text import TextStream


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True)
class Finish:
    """How a request ended."""

    reason: FinishReason
    matched: int | str | None = None  # the stop token or stop string
    message: str = ""  # of an abort
    seconds: float = 0.0
    verify_steps: int = 0
    drafts_proposed: int = 0
    drafts_accepted: int = 0

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify step, the bonus token included; None without verify steps."""
        return (self.drafts_accepted + self.verify_steps) / self.verify_steps if self.verify_steps else None


@dataclass(frozen=True)
class Update:
    """What a step added to a request."""

    text: str
    tokens: list[int]
    finish: Finish | None = None


@dataclass
class Labels:
    """What the client said about a request beside the prompt (`custom_params`)."""

    domain: str = "default"
    opt_out: bool | None = None
    reward_key: str | None = None


@dataclass
class Request:
    """One request. `notify` is called from the engine's thread and must return at once."""

    id: str
    sequence: Sequence
    text: TextStream
    notify: Callable[[Update], None]
    stream: bool = False  # updates as tokens come; else one at the end
    per_token_text: bool = False  # stop strings: text has to be watched as tokens come
    labels: Labels = field(default_factory=Labels)
    arrived: float = field(default_factory=time.time)  # Unix seconds
    arrived_clock: float = field(default_factory=time.perf_counter)
    first_token_clock: float | None = None
    pending: list[int] = field(default_factory=list)  # tokens no update has told yet
    untold_text: list[int] = field(default_factory=list)  # tokens to be decoded at the end only
