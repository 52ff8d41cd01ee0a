"""The trainer's HTTP routes (contracts/trainer.py). Thin: each parses, calls the trainer once, answers."""

from collections.abc import Callable
from pathlib import Path

from fastapi import Depends, FastAPI, HTTPException, Response

from speculator_runtime.bearer import bearer_guard
from speculator_runtime.contracts.trainer import TrainerDirective, TrainerStatus

from .metrics import exposition
from .trainer import StaleDirective, Trainer


def make_app(trainer: Trainer, alive: Callable[[], bool], token_file: Path) -> FastAPI:
    """alive: whether the program's threads run."""
    app = FastAPI(title="speculator-trainer", docs_url=None, redoc_url=None, openapi_url=None)

    protected = [Depends(bearer_guard(token_file))]

    @app.get("/v1/status", dependencies=protected)
    def get_status() -> TrainerStatus:
        return trainer.status()

    @app.put("/v1/directive", dependencies=protected)
    def put_directive(directive: TrainerDirective) -> TrainerStatus:
        try:
            return trainer.direct(directive)
        except StaleDirective as error:
            raise HTTPException(409, str(error)) from error

    @app.get("/healthz")
    def healthz() -> Response:
        healthy = alive()
        return Response("ok\n" if healthy else "a thread of the trainer has stopped\n", 200 if healthy else 503)

    @app.get("/readyz")
    def readyz() -> Response:
        return Response("ok\n")

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(exposition(trainer), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
