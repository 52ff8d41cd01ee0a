"""Options and arguments that several commands share, and what they stand for."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from speculator_operator.api.base import seconds
from speculator_operator.cli.cluster import Cluster, Where
from speculator_operator.cli.errors import CliError


class Format(StrEnum):
    """For programs."""

    JSON = "json"
    YAML = "yaml"


class Credentials(StrEnum):
    """Whose S3 credentials read the ledger."""

    AUTO = "auto"
    OWN = "own"
    SECRET = "secret"


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of Speculators, for the shell's completion; none when the cluster does not say."""
    given = ctx.params
    try:
        cluster = Cluster(Where(given.get("kubeconfig"), given.get("context"), given.get("namespace")))
        names = [str(obj["metadata"]["name"]) for obj in cluster.speculators()]
    except CliError:
        return []
    return [name for name in names if name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the Speculator.", autocompletion=complete_name, show_default=False),
]
Version = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Version number.", show_default=False)]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; by default that of the context.", show_default=False)
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; by default the current one.")
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Kubeconfig file; by default $KUBECONFIG, else ~/.kube/config."),
]
Output = Annotated[
    Format | None, typer.Option("--output", "-o", help="Print for programs instead of people.", show_default=False)
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR in the environment does the same.")]
Timeout = Annotated[str, typer.Option("--timeout", help="How long to wait, for example 30s or 10m.")]
FromLedger = Annotated[
    bool, typer.Option("--ledger", help="Read all of the history from the S3 bucket instead of the cluster.")
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        help="URL at which you reach the S3 server, if not the one in the Speculator (a port-forward, for example).",
        show_default=False,
    ),
]
WhoseCredentials = Annotated[
    Credentials,
    typer.Option(
        "--credentials",
        help="own: the AWS environment, profile or role of this shell. secret: the Secret that the Speculator names, "
        "if you may read it. auto: own if AWS_ACCESS_KEY_ID or AWS_PROFILE is set, else secret.",
    ),
]


def duration(text: str) -> float:
    """Seconds of --timeout."""
    try:
        return seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error
