"""Commands that change a Speculator: each is one patch of its spec; what is done about it is the operator's to say."""

import secrets
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
import yaml

from speculator_operator.api.speculator import ActionType, Mode
from speculator_operator.cli import changes, options, show
from speculator_operator.cli.changes import Change
from speculator_operator.cli.cluster import Cluster, KubeObject, Where
from speculator_operator.cli.errors import UNDER_WAY, CliError, Conflict

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Have the cluster check the change, show it, and change nothing."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Take the place of an action that was not carried out yet.")]
Answer = Annotated[str, typer.Option("--timeout", help="How long to wait for the operator's answer; 0s does not wait.")]
ANSWER = "30s"
PATCH_ATTEMPTS = 8


def promote(
    name: options.Name,
    dry_run: DryRun = False,
    replace: Replace = False,
    timeout: Answer = ANSWER,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Make the candidate stable now, or end the pause that its step waits in.

    Exit code 0: the operator did it. 1: it refused, or the command failed. 3: no answer within --timeout.
    """
    cluster = Cluster(Where(kubeconfig, context, namespace))
    obj = cluster.speculator(name)
    # By number, so that a version that takes the candidate's place meanwhile is not promoted unseen.
    number = changes.candidate(obj, "promote")
    _act(cluster, obj, ActionType.PROMOTE, number, dry_run, replace, timeout)


def abort(
    name: options.Name,
    dry_run: DryRun = False,
    replace: Replace = False,
    timeout: Answer = ANSWER,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """End the candidate's trial; the stable version stays, and this one is not tried again until a retry.

    Exit code 0: the operator did it. 1: it refused, or the command failed. 3: no answer within --timeout.
    """
    cluster = Cluster(Where(kubeconfig, context, namespace))
    obj = cluster.speculator(name)
    _act(cluster, obj, ActionType.ABORT, changes.candidate(obj, "abort"), dry_run, replace, timeout)


def retry(
    name: options.Name,
    version: options.Version,
    dry_run: DryRun = False,
    replace: Replace = False,
    timeout: Answer = ANSWER,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Try a rejected, aborted or expired version again.

    Exit code 0: the operator did it. 1: it refused, or the command failed. 3: no answer within --timeout.
    """
    cluster = Cluster(Where(kubeconfig, context, namespace))
    obj = cluster.speculator(name)
    changes.known(version, cluster.versions(name))
    _act(cluster, obj, ActionType.RETRY, version, dry_run, replace, timeout)


def rollback(
    name: options.Name,
    to_version: Annotated[
        int | None, typer.Option("--to-version", min=1, help="By default the one that was stable before.")
    ] = None,
    dry_run: DryRun = False,
    replace: Replace = False,
    timeout: Answer = ANSWER,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Make an older version stable; the operator checks first that it fits the target.

    Exit code 0: the operator did it. 1: it refused, or the command failed. 3: no answer within --timeout.
    """
    cluster = Cluster(Where(kubeconfig, context, namespace))
    obj, versions = cluster.speculator(name), cluster.versions(name)
    number = changes.previous(obj, versions) if to_version is None else to_version
    changes.known(number, versions)
    _act(cluster, obj, ActionType.ROLLBACK, number, dry_run, replace, timeout)


def pause(
    name: options.Name,
    dry_run: DryRun = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Stop training, publishing and rollouts where they are; serving goes on as it is."""
    cluster = Cluster(Where(kubeconfig, context, namespace))
    obj = cluster.speculator(name)
    _change(cluster, obj, changes.pause(obj, True), dry_run, "paused already")


def resume(
    name: options.Name,
    dry_run: DryRun = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Go on after a pause. (A canary step that waits for a person goes on by promote.)"""
    cluster = Cluster(Where(kubeconfig, context, namespace))
    obj = cluster.speculator(name)
    _change(cluster, obj, changes.pause(obj, False), dry_run, "not paused")


def target_only(
    name: options.Name,
    dry_run: DryRun = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Switch speculation off: replicas decode with the target alone."""
    _mode(Cluster(Where(kubeconfig, context, namespace)), name, Mode.TARGET_ONLY, None, dry_run)


def pin(
    name: options.Name,
    version: options.Version,
    dry_run: DryRun = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Serve one version and let nothing replace it, until auto."""
    cluster = Cluster(Where(kubeconfig, context, namespace))
    changes.known(version, cluster.versions(name))
    _mode(cluster, name, Mode.PINNED, version, dry_run)


def auto(
    name: options.Name,
    dry_run: DryRun = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Go back to gated promotions, after target-only or pin."""
    _mode(Cluster(Where(kubeconfig, context, namespace)), name, Mode.AUTO, None, dry_run)


def _mode(cluster: Cluster, name: str, wanted: Mode, version: int | None, dry_run: bool) -> None:
    obj = cluster.speculator(name)
    _change(cluster, obj, changes.mode(obj, wanted, version), dry_run, f"in mode {wanted.value} already")


def _change(cluster: Cluster, obj: KubeObject, change: Change | None, dry_run: bool, already: str) -> None:
    name = obj["metadata"]["name"]
    if change is None:
        show.Screen().lines([f"Speculator {name} is {already}; nothing was changed."])
        return
    _patch(cluster, obj, change, dry_run)
    if not dry_run:
        show.Screen().lines([f"Speculator {name}: {change.words}."])


def _act(
    cluster: Cluster, obj: KubeObject, kind: ActionType, version: int, dry_run: bool, replace: bool, timeout: str
) -> None:
    """Give the action, then wait for its echo."""
    name, seconds = obj["metadata"]["name"], options.duration(timeout)
    action = changes.action_id(kind, cluster.whoami(), datetime.now(UTC), secrets.token_hex(2))
    change = changes.act(obj, kind, version, action, replace)
    _patch(cluster, obj, change, dry_run)
    if dry_run:
        return
    screen = show.Screen()
    screen.lines([f"Speculator {name}: asked to {change.words}."])
    if not seconds:
        return
    for latest in cluster.changes(name, seconds):
        echo: dict[str, Any] = (latest.get("status") or {}).get("lastAction") or {}
        if echo.get("id") != action:
            continue
        if echo.get("result") == "Refused":
            raise CliError(f"The operator refused: {echo.get('message', 'it gave no reason')}.")
        if echo.get("result") == "Done":
            screen.lines([f"Done: {echo.get('message', '')}."])
            return
    raise CliError(
        f"The operator did not answer within {timeout}; the action stays in the spec, `kubectl speculator get {name}` "
        "shows when it is carried out.",
        UNDER_WAY,
    )


def _patch(cluster: Cluster, obj: KubeObject, change: Change, dry_run: bool) -> None:
    """Send the patch for the spec that was looked at; with dry_run the cluster checks and forgets it.

    The operator writes the status meanwhile, which is no reason to give up; a changed spec is.
    """
    name, looked_at = obj["metadata"]["name"], obj
    for _ in range(PATCH_ATTEMPTS):
        try:
            cluster.patch(name, change.spec, looked_at["metadata"]["resourceVersion"], dry_run)
            break
        except Conflict:
            looked_at = cluster.speculator(name)
            if looked_at["metadata"]["generation"] != obj["metadata"]["generation"]:
                raise
    else:
        raise CliError(
            f"Speculator {name} changes all the time; its spec could not be patched in {PATCH_ATTEMPTS} tries."
        )
    if dry_run:
        text = yaml.safe_dump({"spec": change.spec}, sort_keys=False).rstrip()
        show.Screen().lines([f"Dry run, nothing was changed; the cluster accepts for {name}:", text])
