"""One request over HTTP, measured. Knows the two APIs: OpenAI chat completions, and SGLang's /generate.

Never retries: a failed request is a record with an error.
"""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from .lookup import simulate
from .records import Prompt, Record
from .tokenize import TargetTokenizer

Api = Literal["generate", "chat"]


@dataclass(frozen=True)
class RequestOptions:
    """How every request of a run is sent."""

    api: Api = "generate"
    model: str = "default"
    max_tokens: int = 128
    temperature: float = 0.0
    draft_tokens: int = 3


class RequestFailed(Exception):
    """The server refused, broke off, or sent what is not the API."""


@dataclass
class _Answer:
    """What was read so far of one answer."""

    first: float | None = None
    last: float | None = None
    text: str = ""
    output_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    accept_length: float | None = None
    verify_steps: int | None = None

    def heard(self) -> None:
        now = time.perf_counter()
        self.first = self.first if self.first is not None else now
        self.last = now


def body_of(prompt: Prompt, options: RequestOptions, tokenizer: TargetTokenizer | None) -> tuple[str, dict[str, Any]]:
    """Path and JSON body of a request. The domain travels in `custom_params`, as SGLang lets it through."""
    custom = {"domain": prompt.domain, "prompt_id": prompt.id}
    if options.api == "chat":
        return "/v1/chat/completions", {
            "model": options.model,
            "messages": [{"role": "user", "content": prompt.prompt}],
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "custom_params": custom,
        }
    body: dict[str, Any] = {
        "sampling_params": {
            "max_new_tokens": options.max_tokens,
            "temperature": options.temperature,
            "custom_params": custom,
        },
        "stream": True,
    }
    if tokenizer is None:
        body["text"] = prompt.prompt
    else:
        body["input_ids"] = tokenizer.chat(prompt.prompt)
    return "/generate", body


async def ask(
    client: httpx.AsyncClient, prompt: Prompt, options: RequestOptions, tokenizer: TargetTokenizer | None
) -> Record:
    """Send one request and read the whole answer; failures come back in `Record.error`, cancellation is raised."""
    path, body = body_of(prompt, options, tokenizer)
    started, begun = time.time(), time.perf_counter()
    answer, error = _Answer(), ""
    try:
        async for event in _events(client, path, body):
            _read_event(options.api, event, answer)
        if answer.first is None:
            raise RequestFailed("the answer was empty")
    except httpx.TimeoutException as failure:
        error = f"timed out ({type(failure).__name__})"
    except httpx.HTTPError as failure:
        error = f"{type(failure).__name__}: {failure}"
    except RequestFailed as failure:
        error = str(failure)
    record = Record(
        id=prompt.id,
        domain=prompt.domain,
        started=started,
        seconds=time.perf_counter() - begun,
        tokens_in=answer.prompt_tokens,
        tokens_out=answer.completion_tokens,
        accept_length=answer.accept_length,
        verify_steps=answer.verify_steps,
        error=error,
    )
    if answer.first is not None and answer.last is not None:
        record.ttft = answer.first - begun
        if answer.completion_tokens > 1:
            record.tpot = (answer.last - answer.first) / (answer.completion_tokens - 1)
    if not error and tokenizer is not None:
        _count_lookup(record, prompt, answer, options, tokenizer)
    return record


def _count_lookup(
    record: Record, prompt: Prompt, answer: _Answer, options: RequestOptions, tokenizer: TargetTokenizer
) -> None:
    output = answer.output_ids or tokenizer.encode(answer.text)
    count = simulate(tokenizer.chat(prompt.prompt), output, options.draft_tokens)
    record.prompt_lookup_tokens, record.prompt_lookup_steps = count.tokens, count.steps


async def _events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """JSON objects of a server-sent event stream, up to [DONE]; raises RequestFailed on anything else."""
    async with client.stream("POST", path, json=body) as response:
        if response.status_code != httpx.codes.OK:
            text = (await response.aread()).decode(errors="replace").strip()
            raise RequestFailed(f"HTTP {response.status_code}: {text[:300]}")
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            try:
                event = json.loads(data)
            except json.JSONDecodeError as error:
                raise RequestFailed(f"the server sent an event that is not JSON: {data[:100]!r}") from error
            if "error" in event:
                raise RequestFailed(f"the server broke off: {str(event['error'])[:300]}")
            yield event
        raise RequestFailed("the answer ended before [DONE]: the connection or the engine was lost")


def _read_event(api: Api, event: dict[str, Any], answer: _Answer) -> None:
    if api == "chat":
        for choice in event.get("choices") or ():
            piece = choice.get("delta", {}).get("content") or ""
            if piece:
                answer.heard()
                answer.text += piece
        usage = event.get("usage") or {}
        answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
        answer.completion_tokens = usage.get("completion_tokens", answer.completion_tokens)
        _read_speculation(event.get("meta_info") or event.get("sglext") or {}, answer)
        return
    if (finish := (event.get("meta_info") or {}).get("finish_reason")) and finish.get("type") == "abort":
        raise RequestFailed(f"the server aborted the request: {finish.get('message', '')}")
    answer.text = event.get("text") or answer.text  # cumulative
    meta = event.get("meta_info") or {}
    ids = event.get("output_ids") or []
    whole = len(ids) >= meta.get("completion_tokens", 0)  # servers differ: all ids so far, or the new ones only
    answer.output_ids = list(ids) if ids and whole else answer.output_ids + list(ids)
    if answer.text or answer.output_ids or meta.get("completion_tokens"):
        answer.heard()
    answer.prompt_tokens = meta.get("prompt_tokens", answer.prompt_tokens)
    answer.completion_tokens = meta.get("completion_tokens", answer.completion_tokens)
    _read_speculation(meta, answer)


def _read_speculation(meta: dict[str, Any], answer: _Answer) -> None:
    answer.accept_length = meta.get("spec_accept_length", answer.accept_length)
    answer.verify_steps = meta.get("spec_verify_ct", answer.verify_steps)
