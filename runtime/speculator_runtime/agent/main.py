"""`speculator-agent`: the sidecar program."""

import argparse
import logging
import os
import sys
from pathlib import Path

import uvicorn
import zmq

from speculator_runtime.contracts.settings import AgentSettings, SettingsError
from speculator_runtime.storage import Ledger, StoreError
from speculator_runtime.traces.errors import TraceKeyError
from speculator_runtime.traces.keys import agent_keys

from .clock import SystemClock
from .engine import make_engine
from .server import make_app
from .service import Agent

log = logging.getLogger("speculator.agent")


def load_settings(path: Path) -> AgentSettings:
    """The settings, pod and uid filled from the environment. Raises SettingsError."""
    settings = AgentSettings.load(path)
    return settings.model_copy(
        update={
            "pod": settings.pod or os.environ.get("POD_NAME", ""),
            "pod_uid": settings.pod_uid or os.environ.get("POD_UID", ""),
        }
    )


def serve(settings: AgentSettings) -> None:
    """Until SIGTERM. Raises SettingsError, StoreError, TraceKeyError and OSError for what cannot work at all."""
    # Made here, so that what is wrong shows as one sentence at the start.
    engine = make_engine(settings)
    ledger = Ledger(settings.store)
    secrets = Path(settings.secrets_directory)
    if settings.trainer_endpoint is not None:
        agent_keys(secrets)

    def make_agent() -> Agent:
        return Agent(settings, engine, ledger, SystemClock())

    config = uvicorn.Config(
        make_app(make_agent, secrets / "agent-token"),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    server.run()
    if not server.started:
        raise OSError(f"could not listen on {settings.host}:{settings.port}, or start the agent; see the log above")


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 after SIGTERM, 1 with one sentence when the agent cannot start."""
    parser = argparse.ArgumentParser(prog="speculator-agent", description="Run a replica's plan beside its engine.")
    parser.add_argument("--settings", type=Path, default=Path("/etc/speculator/config/agent.json"))
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for chatty in ("httpx", "httpcore", "botocore", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        serve(load_settings(arguments.settings))
    except (SettingsError, StoreError, TraceKeyError, OSError, zmq.ZMQError) as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
