"""`speculator-operator`: flags and environment to settings, logging, and the process."""

import asyncio
import json
import logging
import os
import socket
import sys
import uuid
from typing import Annotated

import typer

from speculator_operator.kube.process import run_operator
from speculator_operator.settings import ImageDefaults, LogFormat, LoopSettings, OperatorSettings

app = typer.Typer(add_completion=False)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message, and the traceback where there is one."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(level: str, log_format: LogFormat) -> None:
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == LogFormat.JSON else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("kopf", "botocore", "urllib3", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


@app.command()
def run(
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", envvar="SPECULATOR_NAMESPACES", help="Namespace to serve; may be repeated."),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", envvar="SPECULATOR_ALL_NAMESPACES", help="Serve all namespaces.")
    ] = False,
    lease_namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="Namespace of the leader Lease.")
    ] = "default",
    lease_name: Annotated[str, typer.Option(help="Name of the leader Lease.")] = "speculator-operator",
    lease_seconds: Annotated[float, typer.Option(min=1.0, help="Duration of the Lease.")] = 15.0,
    host: Annotated[str, typer.Option(help="Address of metrics and health.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port of metrics and health.")] = 8080,
    rollout_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time between two looks while work is under way.")
    ] = 2.0,
    idle_seconds: Annotated[float, typer.Option(min=0.5, help="Time between two looks otherwise.")] = 20.0,
    objects_seconds: Annotated[float, typer.Option(min=0.5, help="Time between two checks of owned objects.")] = 20.0,
    ledger_seconds: Annotated[float, typer.Option(min=0.1, help="Time between two listings of the bucket.")] = 5.0,
    watchdog_seconds: Annotated[
        float, typer.Option(min=5.0, help="Without a good pass for so long, liveness fails.")
    ] = 180.0,
    concurrent: Annotated[int, typer.Option(min=1, help="Speculators looked at at once.")] = 16,
    runtime_image: Annotated[
        str, typer.Option(envvar="SPECULATOR_RUNTIME_IMAGE", help="Image of agents, trainer and reference engine.")
    ] = ImageDefaults.runtime,
    sglang_image: Annotated[
        str, typer.Option(envvar="SPECULATOR_SGLANG_IMAGE", help="Image of SGLang engines.")
    ] = ImageDefaults.sglang,
    log_level: Annotated[str, typer.Option(envvar="LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    log_format: Annotated[LogFormat, typer.Option(envvar="LOG_FORMAT", help="How log lines look.")] = LogFormat.TEXT,
) -> None:
    """Run the Speculator operator. Several replicas may run; the holder of the Lease reconciles."""
    namespaces = tuple(dict.fromkeys(part for name in namespace or [] for part in name.split(",") if part))
    if all_namespaces == bool(namespaces):
        raise typer.BadParameter("pass either --namespace NAME (one or more) or --all-namespaces")
    level = log_level.upper()
    if level not in logging.getLevelNamesMapping():
        raise typer.BadParameter(f"log level {log_level!r} is not known: use DEBUG, INFO, WARNING or ERROR")
    set_up_logging(level, log_format)
    settings = OperatorSettings(
        identity=f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        namespaces=namespaces,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        lease_seconds=lease_seconds,
        host=host,
        port=port,
        images=ImageDefaults(runtime=runtime_image, sglang=sglang_image),
        loops=LoopSettings(
            rollout_seconds=rollout_seconds,
            idle_seconds=idle_seconds,
            objects_seconds=objects_seconds,
            ledger_seconds=ledger_seconds,
            concurrent=concurrent,
            watchdog_seconds=watchdog_seconds,
        ),
    )
    asyncio.run(run_operator(settings))


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
