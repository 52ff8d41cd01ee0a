"""From a checked HTTP body to a request in the engine and back to updates, on the event loop.

Knows no API's wording: `http_openai` and `http_generate` translate.
"""

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .errors import BadRequest
from .loop import EngineLoop
from .prompts import TargetTokenizer
from .request import Finish, Labels, Request, Update
from .sampling import SamplingParams
from .sequence import Sequence
from .text import TextStream


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    max_context: int
    max_total_tokens: int


@dataclass(frozen=True)
class Ask:
    """A request, whichever API it came by. `max_new_tokens` None: as many as fit."""

    prompt: list[int]
    max_new_tokens: int | None
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False
    labels: Labels = field(default_factory=Labels)
    stream: bool = False
    id: str | None = None


class Answer:
    """A request under way: iterate for its updates, up to one with `finish`. Must be closed by whoever opened it."""

    def __init__(self, request_id: str, prompt_tokens: int, queue: "asyncio.Queue[Update]", left: Callable[[], None]):
        self.id = request_id
        self.prompt_tokens = prompt_tokens
        self.finished = False
        self._queue = queue
        self._left = left

    async def __aiter__(self) -> AsyncIterator[Update]:
        """Updates as they come."""
        while not self.finished:
            update = await self._queue.get()
            self.finished = update.finish is not None
            yield update

    def close(self) -> None:
        """Nobody will read on: cancel the request if it still runs. May be called more than once."""
        self._left()


@dataclass(frozen=True)
class Whole:
    """A complete answer."""

    id: str
    prompt_tokens: int
    text: str
    tokens: list[int]
    finish: Finish


class Frontend:
    """Submits requests to the engine's thread and hands its updates to the event loop."""

    def __init__(self, loop: EngineLoop, tokenizer: TargetTokenizer, limits: Limits, capture: bool) -> None:
        self.loop = loop
        self.tokenizer = tokenizer
        self._limits = limits
        self._capture = capture
        self._ids: set[str] = set()

    def open(self, ask: Ask, prefix: str) -> Answer:
        """Start a request; raises BadRequest, and QueueFull from the engine."""
        request_id = ask.id or f"{prefix}-{uuid.uuid4().hex}"
        if request_id in self._ids:
            raise BadRequest(f"a request with the id {request_id!r} is running already", "rid")
        sequence = self._sequence(ask)
        queue: asyncio.Queue[Update] = asyncio.Queue()
        events = asyncio.get_running_loop()

        def notify(update: Update) -> None:
            # The event loop may be gone when the engine shuts down after it; nobody reads then.
            if not events.is_closed():
                events.call_soon_threadsafe(queue.put_nowait, update)

        request = Request(
            id=request_id,
            sequence=sequence,
            text=TextStream(self.tokenizer, ask.prompt, ask.stops),
            notify=notify,
            stream=ask.stream,
            per_token_text=bool(ask.stops),
            labels=ask.labels,
        )
        self.loop.submit(request)
        self._ids.add(request_id)
        answer = Answer(request_id, len(ask.prompt), queue, lambda: self._leave(answer))
        return answer

    def _leave(self, answer: Answer) -> None:
        self._ids.discard(answer.id)
        if not answer.finished:
            self.loop.cancel(answer.id)

    async def whole(self, ask: Ask, prefix: str, http: HttpRequest) -> Whole | None:
        """The complete answer, or None if the client went away meanwhile (the request is cancelled then)."""
        answer = self.open(ask, prefix)
        collecting = asyncio.ensure_future(self._collect(answer))
        leaving = asyncio.ensure_future(_disconnected(http))
        try:
            await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return collecting.result() if collecting.done() else None
        finally:
            for task in (collecting, leaving):
                task.cancel()
            await asyncio.gather(collecting, leaving, return_exceptions=True)
            answer.close()

    async def _collect(self, answer: Answer) -> Whole:
        text, tokens = "", list[int]()
        async for update in answer:
            text += update.text
            tokens += update.tokens
            if update.finish is not None:
                return Whole(answer.id, answer.prompt_tokens, text, tokens, update.finish)
        raise RuntimeError("updates ended without a finish; this is a bug in the engine loop")

    def _sequence(self, ask: Ask) -> Sequence:
        length = len(ask.prompt)
        if not length:
            raise BadRequest("the prompt is empty; send at least one token", "prompt")
        wrong = [token for token in ask.prompt if not 0 <= token < self.tokenizer.vocab_size]
        if wrong:
            raise BadRequest(
                f"token id {wrong[0]} is outside the target's vocabulary of {self.tokenizer.vocab_size}", "input_ids"
            )
        context = min(self._limits.max_context, self._limits.max_total_tokens)
        if length >= context:
            raise BadRequest(
                f"the prompt has {length} tokens; this engine serves contexts of {context} tokens, output included",
                "prompt",
            )
        wanted = context - length if ask.max_new_tokens is None else ask.max_new_tokens
        if length + wanted > context:
            raise BadRequest(
                f"{length} prompt tokens and {wanted} new tokens are more than this engine's context of {context}; "
                f"ask for at most {context - length} new tokens",
                "max_tokens",
            )
        stop_tokens = ask.stop_tokens if ask.ignore_eos else ask.stop_tokens | self.tokenizer.eos_ids
        seed = secrets.randbits(63) if ask.seed is None else ask.seed
        return Sequence(
            prompt_length=length,
            tokens=list(ask.prompt),
            max_new_tokens=wanted,
            params=SamplingParams(ask.temperature, ask.top_p, ask.top_k, seed),
            stop_tokens=stop_tokens,
            capture=self._capture and ask.labels.opt_out is not True,
        )


class EventStream(StreamingResponse):
    """Server-sent events of an answer, closed however the response ends: a client may leave before the first event."""

    def __init__(self, answer: Answer, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As any ASGI application."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


async def _disconnected(http: HttpRequest) -> None:
    """Returns when the client has closed the connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
