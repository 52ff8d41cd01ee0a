"""Commands that only read the cluster: list, get, status, history, diff, explain."""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from speculator_operator.cli import options, show
from speculator_operator.cli.cluster import Cluster, KubeObject, Where
from speculator_operator.cli.errors import UNDER_WAY, CliError
from speculator_operator.cli.explain import explain as explanation_of
from speculator_operator.cli.history import differences, find, history_lines
from speculator_operator.cli.tree import View, get_lines, list_lines
from speculator_operator.cli.waiting import settled

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it anew after each change, until Ctrl-C.")]
REDRAW_SECONDS = 1.0


def list_(
    namespace: options.Namespace = None,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    watch: Watch = False,
    output: options.Output = None,
    no_color: options.NoColor = False,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """List Speculators."""
    cluster, screen = Cluster(Where(kubeconfig, context, namespace)), show.Screen(no_color)

    def look() -> list[Text]:
        found = cluster.speculators(everywhere)
        if not found:
            place = "any namespace" if everywhere else f"namespace {cluster.namespace}"
            return [Text(f"There are no Speculators in {place}.")]
        return list_lines(found, datetime.now(UTC), everywhere, screen.unicode)

    if output is not None:
        screen.data({"apiVersion": "v1", "kind": "List", "items": cluster.speculators(everywhere)}, output)
    elif watch:
        _redraw(screen, look)
    else:
        screen.lines(look())


def get(
    name: options.Name,
    namespace: options.Namespace = None,
    watch: Watch = False,
    versions: Annotated[int, typer.Option("--versions", min=0, help="Newest versions to show.")] = 5,
    output: options.Output = None,
    no_color: options.NoColor = False,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Show a Speculator with its versions and pods."""
    cluster, screen = Cluster(Where(kubeconfig, context, namespace)), show.Screen(no_color)
    if output is not None:
        screen.data(_view(cluster, name).data(), output)
        return

    def look() -> list[Text]:
        return get_lines(_view(cluster, name), datetime.now(UTC), versions, screen.unicode)

    if watch:
        _redraw(screen, look)
    else:
        screen.lines(look())


def _view(cluster: Cluster, name: str) -> View:
    speculator, versions = cluster.speculator(name), cluster.versions(name)
    try:
        return View(speculator, versions, cluster.pods(name))
    except CliError as error:  # Rights on Speculators do not imply rights on pods.
        return View(speculator, versions, (), str(error))


def _redraw(screen: show.Screen, look: Callable[[], list[Text]]) -> None:
    """On a terminal one picture that changes in place; else what changed, after a blank line."""
    if not screen.terminal:
        earlier: list[str] = []
        while True:
            lines = look()
            if (plain := [line.plain for line in lines]) != earlier:
                screen.lines([*([Text()] if earlier else []), *lines])
                earlier = plain
            time.sleep(REDRAW_SECONDS)
    with Live(screen.frame(look()), console=screen.console, auto_refresh=False) as live:
        while True:
            time.sleep(REDRAW_SECONDS)
            live.update(screen.frame(look()), refresh=True)


def status(
    name: options.Name,
    timeout: options.Timeout = "0s",
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Say in one line where a Speculator stands; with --timeout wait until nothing is under way.

    Exit code 0: it serves and no rollout is under way. 1: it is degraded, or the command failed. 3: still under way.
    """
    cluster, screen = Cluster(Where(kubeconfig, context, namespace)), show.Screen()
    latest: KubeObject = {}
    for latest in cluster.changes(name, options.duration(timeout)):
        if settled(latest):
            break
    found = latest.get("status") or {}
    phase, message = found.get("phase", "Pending"), found.get("message", "the operator has not said anything yet")
    screen.lines([Text.assemble(show.phase(phase, screen.unicode), f": {message}")])
    if phase == "Degraded":
        raise typer.Exit(1)
    if not settled(latest):
        raise typer.Exit(UNDER_WAY)


def history(
    name: options.Name,
    namespace: options.Namespace = None,
    ledger: options.FromLedger = False,
    output: options.Output = None,
    endpoint: options.Endpoint = None,
    credentials: options.WhoseCredentials = options.Credentials.AUTO,
    no_color: options.NoColor = False,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Show the versions and what was decided on each, by whom and why."""
    cluster, screen = Cluster(Where(kubeconfig, context, namespace)), show.Screen(no_color)
    rows = _rows(cluster, name, ledger, credentials, endpoint)
    if output is not None:
        screen.data([{"spec": row["spec"], "status": row.get("status") or {}} for row in rows], output)
    elif rows:
        screen.lines(history_lines(rows, screen.unicode))
    else:
        screen.lines([Text(f"Speculator {name} has no versions yet.")])


def diff(
    name: options.Name,
    first: options.Version,
    second: options.Version,
    namespace: options.Namespace = None,
    ledger: options.FromLedger = False,
    output: options.Output = None,
    endpoint: options.Endpoint = None,
    credentials: options.WhoseCredentials = options.Credentials.AUTO,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Show in what two versions differ: data, training, measurements, verdict."""
    cluster, screen = Cluster(Where(kubeconfig, context, namespace)), show.Screen()
    rows = _rows(cluster, name, ledger, credentials, endpoint)
    found = differences(find(rows, first), find(rows, second))
    if output is not None:
        screen.data({field: {str(first): left, str(second): right} for field, left, right in found}, output)
    else:
        # Sentences are too long for columns.
        table = [row for row in found if row[0] != "message"]
        screen.lines(show.columns(("FIELD", f"VERSION {first}", f"VERSION {second}"), table))
        for _, left, right in (row for row in found if row[0] == "message"):
            screen.lines(["", f"Version {first}: {left}", f"Version {second}: {right}"])


def _rows(
    cluster: Cluster, name: str, ledger: bool, credentials: options.Credentials, endpoint: str | None
) -> list[KubeObject]:
    if not ledger:
        cluster.speculator(name)
        return cluster.versions(name)
    from speculator_operator.cli.ledger import History  # boto3 takes a second to load.

    history = History(cluster, cluster.speculator(name), credentials, endpoint)
    rows = history.rows()
    for problem in history.problems:
        sys.stderr.write(f"Warning: {problem}\n")
    return rows


def explain(
    name: options.Name,
    namespace: options.Namespace = None,
    output: options.Output = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Say why the newest version is not promoted, what that rests on, and what you can do."""
    cluster, screen = Cluster(Where(kubeconfig, context, namespace)), show.Screen()
    found = explanation_of(cluster.speculator(name), cluster.versions(name), datetime.now(UTC))
    if output is not None:
        screen.data(found.data(), output)
        return
    lines = [found.answer]
    if found.because:
        lines += ["", "Because:", *(f"  - {line}" for line in found.because if line)]
    if found.next_steps:
        lines += ["", "You can:", *(f"  - {line}" for line in found.next_steps)]
    screen.lines(lines)
