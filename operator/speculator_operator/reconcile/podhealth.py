"""What is wrong with a pod, in the words of the scheduler, the kubelet and the program that failed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from speculator_operator.reconcile.observed import Problem

IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
COMPONENT_LABEL = "app.kubernetes.io/component"
MESSAGE_LIMIT = 600


@dataclass(frozen=True)
class PodView:
    """What matters of a pod."""

    name: str
    uid: str
    component: str
    address: str
    ready: bool
    terminating: bool
    problem: Problem | None

    @property
    def reachable(self) -> bool:
        """Whether its HTTP ports may answer."""
        return bool(self.address)


def view_pod(pod: Mapping[str, Any]) -> PodView:
    """From the API server's object."""
    meta, status = pod["metadata"], pod.get("status") or {}
    terminating = bool(meta.get("deletionTimestamp"))
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    ready = conditions.get("Ready", {}).get("status") == "True"
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        component=(meta.get("labels") or {}).get(COMPONENT_LABEL, ""),
        address=status.get("podIP") or "",
        ready=ready and not terminating,
        terminating=terminating,
        problem=None if ready or terminating else _problem(meta["name"], status, conditions),
    )


def view_pods(pods: Iterable[Mapping[str, Any]], component: str) -> tuple[PodView, ...]:
    """Pods of a component, by name."""
    views = (view_pod(pod) for pod in pods)
    return tuple(sorted((view for view in views if view.component == component), key=lambda view: view.name))


def _problem(name: str, status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> Problem | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        text = scheduled.get("message") or "the scheduler gave no reason"
        return Problem(scheduled.get("reason") or "Unschedulable", f"pod {name} cannot be scheduled: {text}")
    if status.get("phase") == "Failed" and not status.get("containerStatuses"):
        return Problem(status.get("reason") or "PodFailed", f"pod {name} failed: {status.get('message') or 'evicted'}")
    for container in (*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])):
        found = _container_problem(name, container)
        if found is not None:
            return found
    return None


def _container_problem(pod: str, container: Mapping[str, Any]) -> Problem | None:
    where = f"container {container['name']} of pod {pod}"
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason") or ""
    if reason in IMAGE_REASONS:
        return Problem(
            "ImagePullFailed", f"{where}: {reason}: {_short(waiting.get('message'))}; check image and access"
        )
    if reason in CONFIG_REASONS:
        return Problem("ContainerConfigError", f"{where} cannot start: {_short(waiting.get('message'))}")
    last = (container.get("lastState") or {}).get("terminated") or {}
    ended = state.get("terminated") or (last if reason == "CrashLoopBackOff" else {})
    if not ended or ended.get("exitCode") == 0:
        return None
    if container["name"].startswith("fetch-"):
        return Problem("TargetFetchFailed", f"{where} could not bring the target model: {_ending(ended)}")
    restarts = container.get("restartCount") or 0
    return Problem("CrashLooping", f"{where} ended {restarts + 1} times, last with {_ending(ended)}")


def _ending(terminated: Mapping[str, Any]) -> str:
    code, reason = terminated.get("exitCode"), terminated.get("reason") or "Error"
    text = _short(terminated.get("message"))
    if reason == "OOMKilled":
        text = text or "it needs more memory than its limit; raise resources.limits.memory"
    return f"exit code {code} ({reason}){': ' + text if text else '; see its log'}"


def _short(text: str | None) -> str:
    """The end of a message: programs say last what stopped them."""
    text = " ".join((text or "").split())
    return text if len(text) <= MESSAGE_LIMIT else "..." + text[-MESSAGE_LIMIT:]
