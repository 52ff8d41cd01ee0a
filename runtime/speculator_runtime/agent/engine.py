"""How the agent talks to an engine. One small protocol; each engine that needs another way gets a class of its own."""

import logging
import time
from pathlib import Path
from typing import Protocol, TypeVar

import httpx
from pydantic import ValidationError

from speculator_runtime.contracts.base import VersionedContract
from speculator_runtime.contracts.control import (
    EngineError,
    EngineState,
    EngineStats,
    LoadDrafter,
    RefusalReason,
    SetMode,
)
from speculator_runtime.contracts.settings import AgentSettings, SettingsError

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer", bound=VersionedContract)


class EngineUnavailableError(Exception):
    """The engine did not answer, or not in a way that can be used; asking again later may help."""


class DrafterRefusedError(Exception):
    """The engine looked at a checkpoint and will not run it. Final for its digest."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Engine(Protocol):
    """What the agent needs of an engine. All methods raise EngineUnavailableError."""

    async def state(self) -> EngineState:
        """What runs right now."""
        ...

    async def load(self, drafter: LoadDrafter) -> EngineState:
        """Swap the drafter; raises DrafterRefusedError, and the live one stays."""
        ...

    async def set_mode(self, mode: SetMode) -> EngineState:
        """Switch the mode; returns when it holds for the next decode step."""
        ...

    async def stats(self) -> EngineStats:
        """Counters since the engine started."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class HttpEngine:
    """The control API of contracts/control.py over loopback HTTP."""

    def __init__(self, url: str, token_file: Path, *, load_seconds: float = 120.0, call_seconds: float = 10.0) -> None:
        self._token_file = token_file
        self._load_seconds = load_seconds
        # No proxies from the environment: this is loopback.
        self._client = httpx.AsyncClient(base_url=url, timeout=call_seconds, trust_env=False)
        self.last_load_seconds = 0.0

    async def state(self) -> EngineState:
        """See Engine."""
        return await self._call("GET", "/control/state", EngineState)

    async def load(self, drafter: LoadDrafter) -> EngineState:
        """See Engine."""
        began = time.monotonic()
        state = await self._call("PUT", "/control/drafter", EngineState, drafter, seconds=self._load_seconds)
        self.last_load_seconds = time.monotonic() - began
        return state

    async def set_mode(self, mode: SetMode) -> EngineState:
        """See Engine."""
        return await self._call("PUT", "/control/mode", EngineState, mode)

    async def stats(self) -> EngineStats:
        """See Engine."""
        return await self._call("GET", "/control/stats", EngineStats)

    async def close(self) -> None:
        """See Engine."""
        await self._client.aclose()

    async def _call(
        self,
        method: str,
        path: str,
        answer: type[_Answer],
        body: VersionedContract | None = None,
        seconds: float | None = None,
    ) -> _Answer:
        try:
            # Read for every call: the operator rotates it.
            token = self._token_file.read_text().strip()
        except OSError as error:
            raise EngineUnavailableError(
                f"cannot read the engine's token {self._token_file}: {error.strerror}"
            ) from error
        what = f"{method} {path}"
        try:
            response = await self._client.request(
                method,
                path,
                content=body.model_dump_json() if body else None,
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                timeout=seconds if seconds is not None else httpx.USE_CLIENT_DEFAULT,
            )
        except httpx.HTTPError as error:
            raise EngineUnavailableError(
                f"{what}: no answer from the engine ({type(error).__name__}: {error})"
            ) from error
        if response.status_code == 422:
            raise _refusal(what, response)
        if response.status_code != 200:
            raise EngineUnavailableError(f"{what}: the engine answered {response.status_code}: {response.text[:300]}")
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            first = error.errors()[0]
            raise EngineUnavailableError(
                f"{what}: the answer is no {answer.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}; "
                "run engine and agent of one release"
            ) from error


def _refusal(what: str, response: httpx.Response) -> Exception:
    try:
        error = EngineError.model_validate_json(response.content)
    except ValidationError:
        return EngineUnavailableError(f"{what}: the engine answered 422: {response.text[:300]}")
    return DrafterRefusedError(error.reason, error.message)


def make_engine(settings: AgentSettings) -> Engine:
    """The client for the settings' engine type; raises SettingsError for one that this build does not drive."""
    if settings.engine_type != "reference":
        raise SettingsError(
            f"engineType {settings.engine_type!r} is not driven by this release's agent; use 'reference'"
        )
    return HttpEngine(settings.engine_url, Path(settings.secrets_directory) / "engine-token")
