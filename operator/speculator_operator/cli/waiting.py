"""The command wait, and what it and `status` wait for: whether an object has come to it, or never will."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import typer

from speculator_operator.api.status import ConditionType
from speculator_operator.cli import options, show
from speculator_operator.cli.cluster import Cluster, KubeObject, Where
from speculator_operator.cli.errors import UNDER_WAY, CliError

UNDER_WAY_PHASES = {"Pending", "Starting", "Canary", "Terminating"}
LOST = {"Rejected": "rejected", "Aborted": "aborted", "Expired": "not decided within its limits"}


def settled(obj: KubeObject) -> bool:
    """Whether nothing is under way that will end by itself, as far as the operator has seen the spec."""
    return seen(obj) and (obj.get("status") or {}).get("phase", "Pending") not in UNDER_WAY_PHASES


def seen(obj: KubeObject) -> bool:
    """Whether the status is about the spec as it is now."""
    status = obj.get("status") or {}
    return bool(status and status.get("observedGeneration", 0) >= obj["metadata"].get("generation", 0))


class Goal(Protocol):
    """What is waited for."""

    def reached(self, obj: KubeObject) -> str:
        """A sentence once it is reached, empty before. Raises CliError when it never will be."""
        ...


@dataclass(frozen=True)
class Holds:
    """A condition has a status."""

    condition: str
    status: str

    def reached(self, obj: KubeObject) -> str:
        """See Goal."""
        for found in (obj.get("status") or {}).get("conditions") or []:
            fresh = found.get("observedGeneration", 0) >= obj["metadata"].get("generation", 0)
            if found["type"] == self.condition and found["status"] == self.status and fresh:
                reason = f"{found['reason']}: {found['message']}" if found.get("message") else found["reason"]
                return f"{self.condition} is {self.status} ({reason})"
        return ""


@dataclass
class Promotion:
    """The version on trial becomes stable; with none on trial, the next one that does."""

    _first: dict[str, Any] = field(default_factory=dict)

    def reached(self, obj: KubeObject) -> str:
        """See Goal. The first object seen says which version is meant."""
        status = obj.get("status") or {}
        now = {role: (status.get(role) or {}).get("version") for role in ("stable", "candidate")}
        if not self._first:
            self._first = now
        meant = self._first["candidate"]
        if now["stable"] not in (None, self._first["stable"]):
            if meant in (None, now["stable"]):
                return f"version {now['stable']} is promoted"
            raise CliError(f"Version {meant} was not promoted: version {now['stable']} was made stable instead.")
        if meant is not None and now["candidate"] != meant:
            rejected = {entry["version"]: entry.get("reason", "") for entry in status.get("rejectedDigests") or []}
            why = f"{rejected[meant]}; " if rejected.get(meant) else ""
            raise CliError(
                f"Version {meant} was not promoted: {why}{status.get('message', 'it is no longer on trial')}."
            )
        return ""


def goal(text: str) -> Goal:
    """From --for; raises typer.BadParameter."""
    kind, _, rest = text.partition("=")
    if text == "promoted":
        return Promotion()
    condition, _, status = rest.partition("=")
    names = [entry.value for entry in ConditionType]
    by_lower = {entry.lower(): entry for entry in names}
    wanted = (status or "True").capitalize()
    if kind != "condition" or condition.lower() not in by_lower or wanted not in ("True", "False", "Unknown"):
        raise typer.BadParameter(
            f"{text!r} is neither `promoted` nor `condition=NAME[=True|False|Unknown]` with one of: {', '.join(names)}",
            param_hint="--for",
        )
    return Holds(by_lower[condition.lower()], wanted)


def wait(
    name: options.Name,
    for_: Annotated[str, typer.Option("--for", help="promoted, or condition=NAME[=STATUS].", show_default=False)],
    timeout: options.Timeout = "10m",
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Wait until a condition holds, or until the version on trial (else the next one) is promoted.

    Exit code 0: it is so. 1: it will not be (rejected, aborted, deleted), or the command failed. 3: the time is over.
    """
    wanted, seconds = goal(for_), options.duration(timeout)
    message = ""
    for obj in Cluster(Where(kubeconfig, context, namespace)).changes(name, seconds):
        if said := wanted.reached(obj):
            show.Screen().lines([f"Speculator {name}: {said}."])
            return
        message = (obj.get("status") or {}).get("message", "")
    raise CliError(f"{for_} was not reached within {timeout}; {message or 'the operator says nothing'}.", UNDER_WAY)
