"""Commands as changes of the spec: what is patched, or why it makes no sense now. Pure.

An action is data: a new id each time, echoed in status.lastAction when the operator carried it out or refused it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from speculator_operator.api.speculator import ActionType, Mode
from speculator_operator.cli.cluster import KubeObject
from speculator_operator.cli.errors import CliError

ID_LENGTH = 64


@dataclass(frozen=True)
class Change:
    """A merge patch of the spec, and what it does in words. `action`: id to wait for, if it is an action."""

    spec: Mapping[str, Any]
    words: str
    action: str = ""


def action_id(kind: ActionType, user: str, now: datetime, token: str) -> str:
    """An id that says what, who and when: it becomes the verdict's `decidedBy`. `token` keeps two of a second apart."""
    who = re.sub(r"[^A-Za-z0-9_.-]+", "-", user.removeprefix("system:serviceaccount:").removeprefix("system:"))
    ends = f"{now:%Y%m%dT%H%M%SZ}.{token}"
    who = who.strip("-")[: ID_LENGTH - len(kind.value) - len(ends) - 2].strip("-.")
    return ".".join(filter(None, (kind.value.lower(), who, ends)))


def act(obj: KubeObject, kind: ActionType, version: int | None, action: str, replace: bool) -> Change:
    """Give an action. Raises CliError if another one still waits for the operator, unless it is to be replaced."""
    given = (obj["spec"].get("rollout") or {}).get("action")
    done = ((obj.get("status") or {}).get("lastAction") or {}).get("id")
    if given and given["id"] != done and not replace:
        raise CliError(
            f"Action {given['id']} was given and is not carried out yet; wait for it, or add --replace to put this one "
            "in its place."
        )
    # A null takes away the version of the action before: patches merge.
    patch = {"rollout": {"action": {"id": action, "type": kind.value, "version": version}}}
    words = f"{kind.value} version {version}" if version else kind.value
    return Change(patch, f"{words}, action {action}", action)


def candidate(obj: KubeObject, doing: str) -> int:
    """The version on trial; CliError if there is none."""
    found = (obj.get("status") or {}).get("candidate")
    if not found:
        raise CliError(
            f"There is no candidate to {doing}: no version of {obj['metadata']['name']} is on trial (rollback takes an "
            "older version, retry a rejected one)."
        )
    return int(found["version"])


def previous(obj: KubeObject, versions: Sequence[KubeObject]) -> int:
    """The version that was stable before the present one; CliError names others when the status does not know it."""
    found = ((obj.get("status") or {}).get("rollout") or {}).get("previousStable")
    if found and found["version"]:
        return int(found["version"])
    stable = ((obj.get("status") or {}).get("stable") or {}).get("version")
    others = [str(v["spec"]["version"]) for v in versions if v["spec"]["version"] != stable]
    raise CliError(
        "No version was stable before the present one; name one with --to-version"
        + (f": {', '.join(others)} exist." if others else ", once there is one.")
    )


def known(number: int, versions: Sequence[KubeObject]) -> None:
    """CliError if a version is newer than all that the cluster shows: a slip. Older ones may be in the ledger only."""
    newest = max((int(v["spec"]["version"]) for v in versions), default=0)
    if number > newest:
        there = f"the newest is {newest}" if newest else "none has been published yet"
        raise CliError(f"There is no version {number}; {there}.")


def pause(obj: KubeObject, paused: bool) -> Change | None:
    """Stand still, or go on; None if it does already."""
    if bool(obj["spec"].get("paused")) == paused:
        return None
    words = "paused: training, publishing and rollouts stand still; serving goes on" if paused else "resumed"
    return Change({"paused": paused}, words)


def mode(obj: KubeObject, wanted: Mode, version: int | None = None) -> Change | None:
    """Who decides which drafter is used; None if it is so already."""
    spec = obj["spec"]
    if (spec.get("mode", Mode.AUTO), spec.get("pinnedVersion")) == (wanted, version):
        return None
    pinned = f" to version {version}" if version else ""
    return Change({"mode": wanted.value, "pinnedVersion": version}, f"mode {wanted.value}{pinned}")
