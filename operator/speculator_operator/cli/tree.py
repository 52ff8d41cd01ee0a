"""What `get` and `list` show of a Speculator: a header, and a tree of versions and pods. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.text import Text

from speculator_operator.cli import show
from speculator_operator.cli.cluster import KubeObject
from speculator_operator.reconcile.podhealth import PodView, view_pod

LIST_HEADER = ("NAME", "PHASE", "MODE", "STABLE", "CANDIDATE", "STEP", "SPEEDUP", "PAIRS", "READY", "AGE")


@dataclass(frozen=True)
class View:
    """What was read. `pods_hidden`: why there are no pods, if they could not be read."""

    speculator: KubeObject
    versions: Sequence[KubeObject]
    pods: Sequence[KubeObject]
    pods_hidden: str = ""

    @property
    def status(self) -> dict[str, Any]:
        """Of the Speculator; empty before the operator saw it."""
        return self.speculator.get("status") or {}

    def data(self) -> dict[str, Any]:
        """For programs."""
        return {"speculator": self.speculator, "versions": list(self.versions), "pods": list(self.pods)}


def list_lines(
    speculators: Iterable[KubeObject], now: datetime, everywhere: bool = False, unicode: bool = True
) -> list[Text]:
    """The table of `list`."""
    header = ("NAMESPACE", *LIST_HEADER) if everywhere else LIST_HEADER
    rows = []
    for obj in speculators:
        meta, status = obj["metadata"], obj.get("status") or {}
        row: list[Text | str] = [
            meta["name"],
            show.phase(status.get("phase") or "Pending", unicode),
            obj["spec"].get("mode", "Auto"),
            _version(status.get("stable")),
            _version(status.get("candidate")),
            status.get("step") or show.NONE,
            show.speedup(status.get("speedup")),
            str((status.get("speedup") or {}).get("pairs", show.NONE)),
            _ready(obj),
            show.age(meta.get("creationTimestamp"), now),
        ]
        rows.append([meta["namespace"], *row] if everywhere else row)
    return show.columns(header, rows)


def get_lines(view: View, now: datetime, most_versions: int = 5, unicode: bool = True) -> list[Text]:
    """Header and tree of `get`."""
    return [*_header(view, now, unicode), Text(), *_tree(view, now, most_versions, unicode)]


def _header(view: View, now: datetime, unicode: bool) -> list[Text]:
    meta, spec, status = view.speculator["metadata"], view.speculator["spec"], view.status
    measured = status.get("speedup")
    behind = status.get("observedGeneration", 0) < meta.get("generation", 0)
    fallback = status.get("fallback") or {}
    action = status.get("lastAction")
    return show.pairs(
        [
            ("Name", meta["name"]),
            ("Namespace", meta["namespace"]),
            ("Phase", show.phase(status.get("phase") or "Pending", unicode)),
            ("Message", status.get("message") or "the operator has not said anything yet; is it running?"),
            ("Pending", "the operator has not seen the latest change of the spec yet" if behind and status else ""),
            ("Mode", _mode(spec, status)),
            (
                "Fallback",
                f"{fallback.get('reason')}, {show.age(fallback.get('since'), now)}" if fallback.get("active") else "",
            ),
            ("Stable", _version_and_digest(status.get("stable")) or "none: no version has been promoted"),
            ("Candidate", _version_and_digest(status.get("candidate")) or show.NONE),
            ("Step", status.get("step", "")),
            (
                "Speedup",
                f"{show.speedup(measured)} over target-only decoding, {measured['pairs']} pairs" if measured else "",
            ),
            ("Training", _training(status.get("trainer"))),
            ("Replicas", f"{_ready(view.speculator)} ready"),
            ("Last action", f"{action['id']}: {action['result']}: {action.get('message', '')}" if action else ""),
        ]
    )


def _mode(spec: dict[str, Any], status: dict[str, Any]) -> str:
    mode = str(spec.get("mode", "Auto"))
    if spec.get("pinnedVersion"):
        mode += f" to version {spec['pinnedVersion']}"
    if spec.get("paused"):
        mode += ", paused"
    return f"{mode}; replicas decode {status['mode']} at rest" if status.get("mode") else mode


def _training(trainer: dict[str, Any] | None) -> str:
    if not trainer:
        return ""
    text = f"{trainer.get('phase')}: step {trainer.get('step', 0)}, {trainer.get('requestsReceived', 0)} requests"
    if trainer.get("requestsDropped"):
        text += f" ({trainer['requestsDropped']} dropped)"
    return f"{text}, {trainer.get('published', 0)} versions published"


def _tree(view: View, now: datetime, most: int, unicode: bool) -> list[Text]:
    tee, end = show.BRANCHES[unicode]
    shown, hidden = _shown(view, most)
    versions = [_version_row(version, view.status, now, unicode) for version in shown]
    if hidden:
        versions.append([Text(f"{hidden} more"), "", "", "", "`history` shows all"])
    pods = [_pod_row(pod, view.status, now, unicode) for pod in view.pods]
    if view.pods_hidden:
        pods.append([Text("pods"), "", "", "", view.pods_hidden])
    children = versions + pods
    meta = view.speculator["metadata"]
    rows: list[list[Text | str]] = [
        [
            Text(meta["name"]),
            "Speculator",
            show.phase(view.status.get("phase") or "Pending", unicode),
            show.age(meta.get("creationTimestamp"), now),
            "",
        ]
    ]
    for index, row in enumerate(children):
        branch = end if index + 1 == len(children) else tee
        rows.append([Text(branch).append_text(Text.assemble(row[0])), *row[1:]])
    return show.columns(
        ("NAME", "KIND", "STATUS", "AGE", "INFO"), [[cell or Text(" ") for cell in row] for row in rows]
    )


def _shown(view: View, most: int) -> tuple[list[KubeObject], int]:
    """Newest first: the newest `most`, and those in use however old."""
    used = {(view.status.get(role) or {}).get("version") for role in ("stable", "candidate")}
    ordered = sorted(view.versions, key=lambda obj: int(obj["spec"]["version"]), reverse=True)
    kept = [obj for index, obj in enumerate(ordered) if index < most or obj["spec"]["version"] in used]
    return kept, len(ordered) - len(kept)


def _version_row(obj: KubeObject, status: dict[str, Any], now: datetime, unicode: bool) -> list[Text | str]:
    spec, own = obj["spec"], obj.get("status") or {}
    number = spec["version"]
    info = []
    for role in ("stable", "candidate"):
        if (status.get(role) or {}).get("version") == number:
            info.append(role)
    against = own.get("againstTargetOnly")
    if against is None and "candidate" in info:
        against = status.get("speedup")
    if against:
        info.append(f"speedup {show.speedup(against)}, {against['pairs']} pairs")
    if own.get("acceptLength"):
        info.append(f"accept length {float(own['acceptLength']):.2f}")
    if own.get("reason"):
        info.append(str(own["reason"]))
    return [
        f"version {number}",
        "Version",
        show.phase(own.get("phase") or "Published", unicode),
        show.age(spec.get("created"), now),
        "; ".join(info),
    ]


def _pod_row(pod: KubeObject, status: dict[str, Any], now: datetime, unicode: bool) -> list[Text | str]:
    seen = view_pod(pod)
    info = [_arms(seen, status)] if seen.component == "engine" else []
    if seen.problem:
        info.append(seen.problem.message)
    restarts = sum(c.get("restartCount") or 0 for c in (pod.get("status") or {}).get("containerStatuses") or [])
    if restarts:
        info.append(f"{restarts} restarts")
    word = "Terminating" if seen.terminating else "Ready" if seen.ready else "NotReady"
    return [
        seen.name,
        f"Pod ({seen.component or 'other'})",
        show.phase(word, unicode),
        show.age(pod["metadata"].get("creationTimestamp"), now),
        "; ".join(filter(None, info)),
    ]


def _arms(pod: PodView, status: dict[str, Any]) -> str:
    """What the plan has the replica run."""
    stable, candidate = status.get("stable"), status.get("candidate")
    run = (status.get("rollout") or {}).get("candidate") or {}
    if candidate and pod.name in (run.get("pods") or ()):
        arms = ["TargetOnly", *([f"Stable {stable['version']}"] if stable else []), f"Candidate {candidate['version']}"]
        return "canary, in turn: " + ", ".join(arms)
    if stable and status.get("mode") == "Speculative":
        return f"Stable {stable['version']}"
    return "TargetOnly" if status.get("mode") == "TargetOnly" else ""


def _version(ref: dict[str, Any] | None) -> str:
    return str(ref["version"]) if ref else show.NONE


def _version_and_digest(ref: dict[str, Any] | None) -> str:
    return f"version {ref['version']} (sha256 {show.short(ref.get('sha256', ''))})" if ref else ""


def _ready(obj: KubeObject) -> str:
    wanted = (obj["spec"].get("serving") or {}).get("replicas", 1)
    return f"{(obj.get('status') or {}).get('readyReplicas', 0)}/{wanted}"
