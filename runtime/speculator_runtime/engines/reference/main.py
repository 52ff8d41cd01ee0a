"""speculator-engine: the reference engine's program. Two sockets, one process, a clean end on SIGTERM."""

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from speculator_runtime.contracts.settings import EngineSettings, SettingsError

from .engine import Engine, StartError, start_engine

log = logging.getLogger(__name__)
DEFAULT_SETTINGS = Path("/etc/speculator/config/engine.json")


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: two servers share one process, and draining comes first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `serve`."""
        yield


@dataclass(frozen=True)
class Sockets:
    """The bound sockets of both APIs; nothing is accepted before `serve`."""

    public: socket.socket
    control: socket.socket


def bind(settings: EngineSettings) -> Sockets:
    """Bind before anything is loaded: a taken port shows at once. Raises StartError."""
    return Sockets(_bound(settings.host, settings.port), _bound("127.0.0.1", settings.control_port))


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise StartError(
            f"cannot bind {host}:{port}: {error.strerror}; stop what uses it or set another port"
        ) from error
    return bound


async def serve(engine: Engine, sockets: Sockets, drain_seconds: float, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain."""
    servers = [_Server(_config(engine.public)), _Server(_config(engine.control))]
    running = [
        asyncio.create_task(server.serve(sockets=[bound]))
        for server, bound in zip(servers, (sockets.public, sockets.control), strict=True)
    ]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping: running requests have %.0f s to end", drain_seconds)
    await asyncio.to_thread(engine.close, drain_seconds)
    for server in servers:
        server.should_exit = True
    stopping.cancel()
    await asyncio.gather(*running)


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")


async def _serve_until_signal(engine: Engine, sockets: Sockets, drain_seconds: float) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(engine, sockets, drain_seconds, stop)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="speculator-engine", description=__doc__)
    parser.add_argument("--settings", type=Path, default=DEFAULT_SETTINGS)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = EngineSettings.load(arguments.settings)
        sockets = bind(settings)
        engine = start_engine(settings)
    except (SettingsError, StartError) as error:
        sys.exit(f"speculator-engine: {error}")
    asyncio.run(_serve_until_signal(engine, sockets, settings.drain_seconds))


if __name__ == "__main__":
    main()
