"""The engine's one thread: admits, prefills, decodes, and takes commands between steps.

Everything that touches model, cache or drafter runs here and nowhere else, so that a swap or a mode switch at a step
boundary needs no lock. Faults stay small: of a request, that request; of drafting, one target-only step; of a step,
the requests in it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from speculator_runtime.contracts.control import DecodeMode, DraftShape
from speculator_runtime.traces.codec import Trace

from .batch import Batch
from .capture import build_trace
from .request import Finish, FinishReason, Request, Update
from .stats import Statistics

log = logging.getLogger(__name__)
T = TypeVar("T")

# Prompt rows computed between two decode steps, so that a long prompt does not hold up everybody's next token.
PREFILL_ROWS = 256
MAX_WAITING = 1024
# Drafting faults in a row after which speculation stays off until the next mode or drafter call.
MAX_FAULTS = 3


class TraceSink(Protocol):
    """Where finished requests go; returns at once."""

    def send(self, trace: Trace) -> None:
        """Queue a trace."""
        ...


class QueueFull(Exception):
    """Too many requests wait, or the engine is shutting down; the client should come back later."""


@dataclass
class Policy:
    """How the next step decodes; changed by commands only."""

    mode: DecodeMode = DecodeMode.TARGET_ONLY
    shape: DraftShape = field(default_factory=DraftShape)
    target_only_above: int | None = None
    draft_version: int = 0
    faults_in_a_row: int = 0

    @property
    def speculation_disabled(self) -> bool:
        """Whether drafting failed too often since the last mode or drafter call."""
        return self.faults_in_a_row >= MAX_FAULTS

    @property
    def effective_mode(self) -> DecodeMode:
        """What is really run."""
        return DecodeMode.TARGET_ONLY if self.speculation_disabled else self.mode

    def speculates(self, sequences: int) -> bool:
        """Whether a step of so many sequences drafts."""
        if self.effective_mode is DecodeMode.TARGET_ONLY:
            return False
        return self.target_only_above is None or sequences <= self.target_only_above


class EngineLoop:
    """Runs a batch in a thread of its own."""

    def __init__(self, batch: Batch, stats: Statistics, max_total_tokens: int, traces: TraceSink | None) -> None:
        self.policy = Policy()
        self.stats = stats
        self._batch = batch
        self._max_total_tokens = max_total_tokens
        self._traces = traces
        self._active: dict[int, Request] = {}  # by id(sequence)
        self._waiting: deque[Request] = deque()
        self._cancelled: set[str] = set()
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._draining = False
        self._closing = False
        self._step_started: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._batch)

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        return len(self._waiting)

    @property
    def draining(self) -> bool:
        """Whether new requests are refused."""
        return self._draining

    def healthy(self, patience: float = 120.0) -> bool:
        """Whether the thread lives and no single iteration has taken longer than `patience` seconds."""
        started = self._step_started
        return self._thread.is_alive() and (started is None or time.perf_counter() - started < patience)

    def submit(self, request: Request) -> None:
        """Queue a request; raises QueueFull."""
        with self._changed:
            if self._draining:
                raise QueueFull("the engine is shutting down; send the request to another replica")
            if len(self._waiting) >= MAX_WAITING:
                raise QueueFull(f"{MAX_WAITING} requests wait already; try again later")
            self._waiting.append(request)
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """The client went away: free what the request holds. Unknown ids are ignored."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Run a function between two steps, in the engine's thread."""
        future: Future[T] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 (handed to whoever waits for the future)
                future.set_exception(error)

        with self._changed:
            if self._closing:
                future.set_exception(RuntimeError("the engine has stopped"))
            else:
                self._commands.append(command)
                self._changed.notify()
        return future

    def drain(self, seconds: float) -> None:
        """Refuse new requests, wait up to `seconds` for those that run, then abort the rest and stop the thread."""
        with self._changed:
            self._draining = True
            self._changed.notify()
            self._changed.wait_for(lambda: not self._waiting and not self._active, seconds)
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while self._wait():
            self._step_started = time.perf_counter()
            self._run_commands()
            self._drop_cancelled()
            self._admit()
            self._prefill()
            self._decode()
            self._step_started = None
        for request in [*self._active.values(), *self._waiting]:
            self._end(request, Finish(FinishReason.ABORT, message="the engine is shutting down"))
        self._waiting.clear()
        self._run_commands()

    def _wait(self) -> bool:
        with self._changed:
            if not self._active and not self._waiting:
                self._changed.notify_all()  # for drain()
            self._changed.wait_for(
                lambda: self._closing or self._active or self._waiting or self._commands or self._cancelled
            )
            return not self._closing

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _drop_cancelled(self) -> None:
        if not self._cancelled:
            return
        with self._changed:
            gone, self._cancelled = self._cancelled, set()
            waiting = [r for r in self._waiting if r.id in gone]
            self._waiting = deque(r for r in self._waiting if r.id not in gone)
        for request in [*waiting, *(r for r in self._active.values() if r.id in gone)]:
            self._end(request, Finish(FinishReason.ABORT, message="cancelled by the client"), failed=False)

    def _admit(self) -> None:
        batch = self._batch
        if not self._waiting or batch.prefilling is not None or batch.full:
            return
        reserved = sum(r.sequence.reservation for r in self._active.values())
        if reserved + self._waiting[0].sequence.reservation > self._max_total_tokens:
            return
        with self._changed:
            request = self._waiting.popleft()
        self._active[id(request.sequence)] = request
        batch.admit(request.sequence)

    def _prefill(self) -> None:
        sequence = self._batch.prefilling
        if sequence is None:
            return
        request, started, before = self._active[id(sequence)], time.perf_counter(), sequence.computed
        try:
            taken = self._batch.prefill(PREFILL_ROWS)
        except Exception as error:
            log.exception("prefill of request %s failed", request.id)
            self._end(request, _abort(error))
            return
        now = time.perf_counter()
        self.stats.record_prefill(sequence.computed - before, now - started)
        if taken:
            request.first_token_clock = now
            self._tell(request, taken)

    def _decode(self) -> None:
        batch = self._batch
        if not batch.sequences:
            return
        requests = [self._active[id(s)] for s in batch.sequences]
        started = time.perf_counter()
        try:
            committed, verified = self._step()
        except Exception as error:
            log.exception("a decode step of %d requests failed", len(requests))
            for request in requests:
                self._end(request, _abort(error))
            return
        counts = [self._tell(request, tokens) for request, tokens in zip(requests, committed, strict=True)]
        seconds = time.perf_counter() - started
        self.stats.record_step(counts, [r.labels.domain for r in requests], seconds, verified)

    def _step(self) -> tuple[list[list[int]], bool]:
        batch, policy = self._batch, self.policy
        if not policy.speculates(len(batch.sequences)):
            return batch.step_target_only(), False
        try:
            trees = batch.propose(policy.shape)
        except Exception:  # whatever is wrong with a drafter must not cost a request
            self.stats.drafting_faults += 1
            policy.faults_in_a_row += 1
            log.exception("drafting failed (%d in a row); this step is target-only", policy.faults_in_a_row)
            if policy.speculation_disabled:
                log.error("speculation is off until the next mode or drafter call")
            return batch.step_target_only(), False
        policy.faults_in_a_row = 0
        if trees is None:
            return batch.step_target_only(), False
        return batch.step_verify(trees), True

    def _tell(self, request: Request, tokens: list[int]) -> int:
        """Pass on committed tokens, and end the request where they end it; returns how many of them count."""
        sequence = request.sequence
        ended_by = tokens[-1] if tokens[-1] in sequence.stop_tokens else None
        shown = tokens if ended_by is None else tokens[:-1]
        if request.stream or request.per_token_text:
            used = request.text.push(shown)
            if request.text.stopped_by is not None:
                del sequence.tokens[len(sequence.tokens) - len(tokens) + used :]
                tokens = tokens[:used]
        else:
            request.untold_text += shown
        request.pending += tokens
        if request.text.stopped_by is not None:
            self._end(request, Finish(FinishReason.STOP, matched=request.text.stopped_by))
        elif sequence.stopped:
            reason = FinishReason.LENGTH if ended_by is None else FinishReason.STOP
            self._end(request, Finish(reason, matched=ended_by))
        elif request.stream:
            request.notify(Update(request.text.take(), request.pending))
            request.pending = []
        return len(tokens)

    def _end(self, request: Request, finish: Finish, failed: bool = True) -> None:
        """Free a request's slot, count it, trace it, and tell whoever waits. `failed`: an abort counts as ours."""
        sequence, now = request.sequence, time.perf_counter()
        aborted = finish.reason is FinishReason.ABORT
        if not aborted:
            self._trace(request)
        if self._active.pop(id(sequence), None) is not None:
            self._batch.remove(sequence)
        seconds = now - request.arrived_clock
        if not aborted:
            first = request.first_token_clock or now
            self.stats.record_finished(first - request.arrived_clock, len(sequence.tokens), seconds)
        elif failed:
            self.stats.record_failed()
        request.text.push(request.untold_text)
        request.text.finish()
        if not aborted and request.text.stopped_by is not None:  # perhaps only in text that was held back
            finish = Finish(FinishReason.STOP, matched=request.text.stopped_by)
        told = Finish(
            reason=finish.reason,
            matched=finish.matched,
            message=finish.message,
            seconds=seconds,
            verify_steps=sequence.verify_steps,
            drafts_proposed=sequence.drafts_proposed,
            drafts_accepted=sequence.drafts_accepted,
        )
        request.notify(Update(request.text.take(final=True), request.pending, told))

    def _trace(self, request: Request) -> None:
        sequence = request.sequence
        if self._traces is None or not sequence.capture:
            return
        try:
            features = self._batch.features[sequence.slot]
            mode, version = self.policy.effective_mode, self.policy.draft_version
            trace = build_trace(request, features, self._batch.target, mode, version, time.time())
            self._traces.send(trace)
        except Exception:
            self.stats.traces_lost += 1
            log.exception("the trace of request %s was lost", request.id)


def _abort(error: Exception) -> Finish:
    return Finish(FinishReason.ABORT, message=f"internal error: {type(error).__name__}: {error}")
