"""SGLang's `/generate`: the shapes that its clients expect, for one prompt a request."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from .frontend import Answer, Ask, EventStream, Frontend
from .protocol import CustomParams, GenerateBody
from .request import Finish, FinishReason

CLIENT_CLOSED = 499  # nobody reads it; the number that proxies log


def generate_router(frontend: Frontend) -> APIRouter:
    """Route `POST /generate`."""
    router = APIRouter()

    @router.post("/generate")
    async def generate(body: GenerateBody, http: Request) -> Response:
        ask = ask_of(body, frontend)
        started = time.perf_counter()
        if body.stream:
            answer = frontend.open(ask, "gen")
            return EventStream(answer, _stream(answer, started))
        whole = await frontend.whole(ask, "gen", http)
        if whole is None:
            return Response(status_code=CLIENT_CLOSED)
        meta = meta_info(whole.id, whole.prompt_tokens, len(whole.tokens), whole.finish, started)
        status = 500 if whole.finish.reason is FinishReason.ABORT else 200
        return JSONResponse({"text": whole.text, "output_ids": whole.tokens, "meta_info": meta}, status)

    return router


def ask_of(body: GenerateBody, frontend: Frontend) -> Ask:
    """The request behind a body; raises BadRequest."""
    body.reject_unsupported()
    params = body.sampling_params
    params.reject_unsupported()
    prompt = body.input_ids if body.input_ids is not None else frontend.tokenizer.encode(body.text or "")
    return Ask(
        prompt=prompt,
        max_new_tokens=params.max_new_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=max(params.top_k, 0),
        seed=params.sampling_seed,
        stops=tuple(params.stop or ()),
        stop_tokens=frozenset(params.stop_token_ids or ()),
        ignore_eos=params.ignore_eos,
        labels=(params.custom_params or CustomParams()).labels(),
        stream=body.stream,
        id=body.rid,
    )


async def _stream(answer: Answer, started: float) -> AsyncIterator[str]:
    """As SGLang: text and output_ids grow from event to event."""
    text, tokens = "", list[int]()
    async for update in answer:
        text += update.text
        tokens += update.tokens
        meta = meta_info(answer.id, answer.prompt_tokens, len(tokens), update.finish, started)
        yield f"data: {json.dumps({'text': text, 'output_ids': tokens, 'meta_info': meta})}\n\n"
    yield "data: [DONE]\n\n"


def meta_info(request_id: str, prompt: int, completion: int, finish: Finish | None, started: float) -> dict[str, Any]:
    """SGLang's `meta_info`. `spec_accept_length`: tokens per verify step, bonus included; absent without such steps."""
    meta: dict[str, Any] = {
        "id": request_id,
        "finish_reason": None,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cached_tokens": 0,
        "e2e_latency": time.perf_counter() - started,
    }
    if finish is not None:
        meta["finish_reason"] = _finish_reason(finish, completion)
        meta |= speculation(finish)
    return meta


def speculation(finish: Finish) -> dict[str, Any]:
    """What speculative decoding did for a request; empty if it was decoded target-only."""
    if not finish.verify_steps:
        return {}
    return {
        "spec_verify_ct": finish.verify_steps,
        "spec_accept_length": finish.accept_length,
        "spec_draft_token_num": finish.drafts_proposed,
        "spec_accept_token_num": finish.drafts_accepted,
    }


def _finish_reason(finish: Finish, completion: int) -> dict[str, Any]:
    if finish.reason is FinishReason.LENGTH:
        return {"type": "length", "length": completion}
    if finish.reason is FinishReason.ABORT:
        return {"type": "abort", "message": finish.message}
    return {"type": "stop", "matched": finish.matched}
