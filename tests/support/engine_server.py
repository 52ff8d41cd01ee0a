"""A reference engine in this process with real sockets, for tests that talk HTTP to it."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from speculator_runtime.contracts.control import EngineStats
from speculator_runtime.contracts.settings import EngineSettings
from speculator_runtime.engines.reference.engine import Engine, start_engine
from speculator_runtime.engines.reference.main import bind, serve

TOKEN = "test-engine-token"


def free_port() -> int:
    """A TCP port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def engine_settings(target: Path, work: Path, **changes: Any) -> EngineSettings:
    """Settings for a tiny target: loopback, free ports, one thread, float32, a token of its own."""
    secrets = work / "secrets"
    secrets.mkdir(parents=True, exist_ok=True)
    (secrets / "engine-token").write_text(TOKEN)
    values: dict[str, Any] = {
        "model": "tiny",
        "target_directory": str(target),
        "dtype": "float32",
        "host": "127.0.0.1",
        "port": free_port(),
        "control_port": free_port(),
        "max_context": 256,
        "max_total_tokens": 1024,
        "max_running_requests": 4,
        "threads": 1,
        "trace_endpoint": None,
        "secrets_directory": str(secrets),
        "drain_seconds": 5.0,
    }
    return EngineSettings.model_validate(values | changes)


@dataclass
class Running:
    """An engine that serves."""

    engine: Engine
    settings: EngineSettings
    http: httpx.Client
    control: httpx.Client

    def stats(self) -> EngineStats:
        """The control API's counters."""
        return EngineStats.model_validate(self.control.get("/control/stats").raise_for_status().json())

    def generate(self, prompt: list[int], new_tokens: int, **params: Any) -> dict[str, Any]:
        """A greedy `/generate`, end-of-sequence ignored."""
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True} | params
        answer = self.http.post("/generate", json={"input_ids": prompt, "sampling_params": sampling})
        result: dict[str, Any] = answer.raise_for_status().json()
        return result


@contextmanager
def running_engine(settings: EngineSettings) -> Iterator[Running]:
    """Serve in a thread; at the end the engine drains and its sockets close."""
    sockets = bind(settings)
    engine = start_engine(settings)
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        started.append((asyncio.get_running_loop(), stop))
        await serve(engine, sockets, settings.drain_seconds, stop)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{settings.port}"
    control = f"http://127.0.0.1:{settings.control_port}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        httpx.Client(base_url=base, timeout=60) as http,
        httpx.Client(base_url=control, headers=headers, timeout=60) as c,
    ):
        _wait_until_up(http, c)
        try:
            yield Running(engine, settings, http, c)
        finally:
            loop, stop = started[0]
            loop.call_soon_threadsafe(stop.set)
            thread.join(timeout=30)
            if thread.is_alive():
                raise AssertionError("the engine did not stop within 30 s")


def _wait_until_up(*clients: httpx.Client) -> None:
    end = time.monotonic() + 30
    for client in clients:
        while True:
            try:
                client.get("/")
                break
            except httpx.ConnectError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
