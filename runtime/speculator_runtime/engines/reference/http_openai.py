"""OpenAI's `/v1/completions` and `/v1/chat/completions`, one answer a request, streaming or not."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from .errors import BadRequest
from .frontend import Answer, Ask, EventStream, Frontend
from .http_generate import CLIENT_CLOSED, speculation
from .protocol import ChatBody, CompletionBody, Message
from .request import Finish, FinishReason

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions


@dataclass(frozen=True)
class _Shape:
    """How the two APIs word the same answer."""

    kind: Literal["completion", "chat"]
    model: str
    created: int
    id: str

    def envelope(self, choices: list[dict[str, Any]], streaming: bool) -> dict[str, Any]:
        if self.kind == "chat":
            name = "chat.completion.chunk" if streaming else "chat.completion"
        else:
            name = "text_completion"
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def choice(self, text: str, finish: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.kind == "chat":
            return choice | {"message": {"role": "assistant", "content": text}}
        return choice | {"text": text}

    def piece(self, text: str, finish: str | None, first: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.kind == "completion":
            return choice | {"text": text}
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        return choice | {"delta": delta | ({"content": text} if text or first else {})}


def openai_router(frontend: Frontend, model: str, created: int) -> APIRouter:
    """Routes of OpenAI's API for the one model that is served."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, Any]:
        entry = {"id": model, "object": "model", "created": created, "owned_by": "speculator"}
        return {"object": "list", "data": [entry]}

    @router.post("/completions")
    async def completions(body: CompletionBody, http: Request) -> Response:
        _check_model(body.model, model)
        prompt = body.prompt[0] if isinstance(body.prompt, list) and body.prompt else body.prompt
        ids = frontend.tokenizer.encode(prompt) if isinstance(prompt, str) else _ids(body.prompt)
        ask = _ask(body, ids, body.max_tokens or _DEFAULT_COMPLETION_TOKENS)
        return await _respond(frontend, ask, _Shape("completion", model, int(time.time()), body.rid or ""), body, http)

    @router.post("/chat/completions")
    async def chat(body: ChatBody, http: Request) -> Response:
        _check_model(body.model, model)
        ids = frontend.tokenizer.chat([_plain(message) for message in body.messages])
        ask = _ask(body, ids, body.max_completion_tokens or body.max_tokens)
        return await _respond(frontend, ask, _Shape("chat", model, int(time.time()), body.rid or ""), body, http)

    return router


def _plain(message: Message) -> dict[str, Any]:
    return message.plain()


def _ids(prompt: object) -> list[int]:
    return [token for token in prompt if isinstance(token, int)] if isinstance(prompt, list) else []


def _check_model(asked: str | None, served: str) -> None:
    if asked is not None and asked != served:
        raise BadRequest(f"the model {asked!r} is not served here; this engine serves {served!r}", "model")


def _ask(body: CompletionBody | ChatBody, prompt: list[int], max_new_tokens: int | None) -> Ask:
    body.reject_unsupported()
    return Ask(
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(body.top_k or 0, 0),
        seed=body.seed,
        stops=tuple(body.stop or ()),
        stop_tokens=frozenset(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
        labels=body.labels(),
        stream=body.stream,
        id=body.rid,
    )


async def _respond(
    frontend: Frontend, ask: Ask, shape: _Shape, body: CompletionBody | ChatBody, http: Request
) -> Response:
    prefix = "chatcmpl" if shape.kind == "chat" else "cmpl"
    if body.stream:
        answer = frontend.open(ask, prefix)
        usage = body.stream_options is not None and body.stream_options.include_usage
        named = _Shape(shape.kind, shape.model, shape.created, answer.id)
        return EventStream(answer, _stream(answer, named, usage))
    whole = await frontend.whole(ask, prefix, http)
    if whole is None:
        return Response(status_code=CLIENT_CLOSED)
    if whole.finish.reason is FinishReason.ABORT:
        return JSONResponse(error_body(whole.finish.message, "server_error"), 500)
    named = _Shape(shape.kind, shape.model, shape.created, whole.id)
    result = named.envelope([named.choice(whole.text, whole.finish.reason.value)], streaming=False)
    result["usage"] = _usage(whole.prompt_tokens, len(whole.tokens), whole.finish)
    if whole.finish.verify_steps:
        result["sglext"] = speculation(whole.finish)
    return JSONResponse(result)


async def _stream(answer: Answer, shape: _Shape, usage: bool) -> AsyncIterator[str]:
    tokens, first = 0, True
    async for update in answer:
        tokens += len(update.tokens)
        finish = update.finish
        if finish is not None and finish.reason is FinishReason.ABORT:
            yield _event(error_body(finish.message, "server_error"))
            break
        if update.text or finish is not None or first:
            reason = None if finish is None else finish.reason.value
            yield _event(shape.envelope([shape.piece(update.text, reason, first)], streaming=True))
            first = False
        if finish is not None and usage:
            last = shape.envelope([], streaming=True) | {"usage": _usage(answer.prompt_tokens, tokens, finish)}
            if finish.verify_steps:
                last["sglext"] = speculation(finish)
            yield _event(last)
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _usage(prompt: int, completion: int, finish: Finish) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "accepted_prediction_tokens": finish.drafts_accepted,
            "rejected_prediction_tokens": finish.drafts_proposed - finish.drafts_accepted,
        },
    }


def error_body(message: str, kind: str, parameter: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}
