"""The trainer's HTTP routes (contracts/trainer.py). Thin: each parses, calls the trainer once, answers."""

import hmac
from collections.abc import Callable
from pathlib import Path

from fastapi import Depends, FastAPI, HTTPException, Request, Response

from speculator_runtime.contracts.trainer import TrainerDirective, TrainerStatus

from .metrics import exposition
from .trainer import StaleDirective, Trainer


def make_app(trainer: Trainer, alive: Callable[[], bool], token_file: Path) -> FastAPI:
    """alive: whether the program's threads run."""
    app = FastAPI(title="speculator-trainer", docs_url=None, redoc_url=None, openapi_url=None)

    def authorised(request: Request) -> None:
        _check_token(request.headers.get("Authorization", ""), token_file)

    protected = [Depends(authorised)]

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


def _check_token(header: str, token_file: Path) -> None:
    """Raises HTTPException unless the header carries the file's token. The file is read every time: it is rotated."""
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        raise HTTPException(503, f"cannot read {token_file}: {error.strerror}") from error
    if not token:
        raise HTTPException(503, f"{token_file} is empty")
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise HTTPException(401, "a bearer token is needed: the Secret's trainer-token")
