"""speculator-engine: the reference engine's program. Two sockets, one process, a clean end on SIGTERM."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


def _server(app: FastAPI, host: str, port: int) -> _Server:
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False, lifespan="off")
    return _Server(config)


async def serve(engine: Engine, settings: EngineSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    stop = asyncio.Event()
    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, stop.set)
    servers = [
        _server(engine.public, settings.host, settings.port),
        _server(engine.control, "127.0.0.1", settings.control_port),
    ]
    running = [asyncio.create_task(server.serve()) for server in servers]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping: running requests have %.0f s to end", settings.drain_seconds)
    await asyncio.to_thread(engine.close, settings.drain_seconds)
    for server in servers:
        server.should_exit = True
    stopping.cancel()
    await asyncio.gather(*running)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="speculator-engine", description=__doc__)
    parser.add_argument("--settings", type=Path, default=DEFAULT_SETTINGS)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = EngineSettings.load(arguments.settings)
        engine = start_engine(settings)
    except (SettingsError, StartError) as error:
        sys.exit(f"speculator-engine: {error}")
    asyncio.run(serve(engine, settings))


if __name__ == "__main__":
    main()
