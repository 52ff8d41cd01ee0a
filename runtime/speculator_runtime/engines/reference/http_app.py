"""The engine's two HTTP applications: the public one (serving, health, metrics) and the control one (loopback)."""

import asyncio
import logging
import time
from pathlib import Path

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from speculator_runtime.bearer import bearer_guard
from speculator_runtime.contracts.control import (
    EngineError,
    EngineState,
    EngineStats,
    LoadDrafter,
    RefusalReason,
    SetMode,
)
from speculator_runtime.drafter.checkpoint import CheckpointRefused

from .errors import BadRequest
from .frontend import Ask, Frontend
from .http_generate import generate_router
from .http_openai import error_body, openai_router
from .loop import QueueFull
from .request import FinishReason, Labels
from .service import ControlService, ShapeError

log = logging.getLogger(__name__)
_GENERATE_PATIENCE_SECONDS = 20.0


def public_app(frontend: Frontend, model: str, registry: CollectorRegistry) -> FastAPI:
    """What clients and probes use."""
    app = FastAPI(title="speculator reference engine", docs_url=None, redoc_url=None, openapi_url=None)
    _add_error_shapes(app)
    app.include_router(openai_router(frontend, model, int(time.time())))
    app.include_router(generate_router(frontend))

    @app.get("/health")
    async def health() -> Response:
        if frontend.loop.draining:
            return PlainTextResponse("shutting down", 503)
        if not frontend.loop.healthy():
            return PlainTextResponse("the engine's thread is stuck or gone", 503)
        return PlainTextResponse("ok")

    @app.get("/health_generate")
    async def health_generate(http: Request) -> Response:
        prompt = [min(frontend.tokenizer.eos_ids, default=0)]
        ask = Ask(prompt, 1, 0.0, ignore_eos=True, labels=Labels(domain="health", opt_out=True))
        try:
            async with asyncio.timeout(_GENERATE_PATIENCE_SECONDS):
                whole = await frontend.whole(ask, "health", http)
        except TimeoutError:
            return PlainTextResponse(f"no token within {_GENERATE_PATIENCE_SECONDS:.0f} s", 503)
        good = whole is not None and whole.finish.reason is not FinishReason.ABORT
        return PlainTextResponse("ok" if good else "generation failed", 200 if good else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def control_app(service: ControlService, token_file: Path) -> FastAPI:
    """What the agent uses. The routes are synchronous functions: they run in worker threads, not on the event loop."""

    app = FastAPI(
        title="speculator engine control",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(bearer_guard(token_file))],
    )

    @app.exception_handler(CheckpointRefused)
    async def refused(_: Request, error: Exception) -> Response:
        if not isinstance(error, CheckpointRefused):
            raise error
        log.warning("refused a drafter: %s: %s", error.reason, error.message)
        body = EngineError(reason=error.reason, message=error.message)
        return JSONResponse(body.model_dump(mode="json"), 422)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        return PlainTextResponse(f"the body is not valid: {_first_problem(error)[0]}", 400)

    @app.exception_handler(ShapeError)
    async def bad_shape(_: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), 400)

    @app.get("/control/state")
    def state() -> EngineState:
        return service.state()

    @app.put("/control/drafter")
    def drafter(body: LoadDrafter) -> EngineState:
        try:
            return service.load(body)
        except CheckpointRefused:
            raise
        except Exception as error:
            log.exception("loading drafter version %d failed", body.version)
            raise CheckpointRefused(RefusalReason.INTERNAL, f"{type(error).__name__}: {error}") from error

    @app.put("/control/mode")
    def mode(body: SetMode) -> EngineState:
        return service.set_mode(body)

    @app.get("/control/stats")
    def stats() -> EngineStats:
        return service.stats()

    return app


def _add_error_shapes(app: FastAPI) -> None:
    @app.exception_handler(BadRequest)
    async def bad(_: Request, error: Exception) -> Response:
        parameter = error.parameter if isinstance(error, BadRequest) else None
        return JSONResponse(error_body(str(error), "invalid_request_error", parameter), 400)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        message, parameter = _first_problem(error)
        return JSONResponse(error_body(message, "invalid_request_error", parameter), 400)

    @app.exception_handler(QueueFull)
    async def full(_: Request, error: Exception) -> Response:
        return JSONResponse(error_body(str(error), "overloaded_error"), 503, headers={"Retry-After": "5"})

    @app.exception_handler(Exception)
    async def other(_: Request, error: Exception) -> Response:
        return JSONResponse(error_body(f"internal error: {type(error).__name__}", "server_error"), 500)


def _first_problem(error: Exception) -> tuple[str, str | None]:
    """Message and parameter of the first thing wrong with a body."""
    if not isinstance(error, RequestValidationError) or not error.errors():
        return str(error), None
    problem = error.errors()[0]
    where = [str(part) for part in problem["loc"] if part != "body"]
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "json_invalid":
        return f"the body is not JSON: {problem.get('ctx', {}).get('error', message)}", None
    name = where[0] if where else None
    return (f"{'.'.join(where)}: {message}" if where else message), name
