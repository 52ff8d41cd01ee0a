"""kopf watches what a Speculator depends on; each event only wakes a worker.

Event handlers alone: kopf then stores nothing in objects (no progress, no diff-base, no finalizer of its own). Names
are set all the same, so that a handler of another sort would not write under kopf's defaults.
"""

import logging
from collections.abc import Callable
from typing import Any

import kopf

from speculator_operator.api.base import GROUP, VERSION
from speculator_operator.kube.workers import Key

SPECULATOR_LABEL = "speculator.dev/speculator"
OWNED = (
    ("apps", "v1", "statefulsets"),
    ("apps", "v1", "deployments"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
)
SERVER_TIMEOUT = 240
"""Seconds after which the API server ends a watch, so that a silently dead one does not last. An int: the API refuses
a float, and kopf then loses the watch for good without a word."""


def operator_settings(settings: kopf.OperatorSettings, workers: int) -> None:
    """Finite times and bounded work."""
    # Not our finalizer: kopf takes the one it calls its own away from objects that none of its handlers need it for.
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP, key="last-handled")
    settings.posting.enabled = False
    settings.watching.server_timeout = SERVER_TIMEOUT
    settings.watching.client_timeout = SERVER_TIMEOUT + 60
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = (1, 1, 2, 3, 5)
    settings.queueing.worker_limit = workers
    settings.queueing.error_delays = (1, 2, 5, 10)
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 1.0
    settings.peering.standalone = True
    for group, version, plural in (*OWNED, ("", "v1", "pods")):
        settings.watching.label_selectors[group, version, plural] = SPECULATOR_LABEL
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


def watch_registry(
    wake: Callable[[Key], None], touch: Callable[[Key], None], known: Callable[[], list[Key]]
) -> kopf.OperatorRegistry:
    """Handlers for everything watched.

    wake: look at a Speculator. touch: its owned objects changed. known: the Speculators there are, for policies, which
    do not name those that use them.
    """
    registry = kopf.OperatorRegistry()
    generations: dict[str, tuple[Any, ...]] = {}

    async def speculator(event: kopf.RawEvent, name: str, namespace: str | None, uid: str, **_: Any) -> None:
        meta = event["object"]["metadata"]
        # Our own status writes come back as events; only what others may have changed is worth a pass.
        seen = (meta.get("generation"), meta.get("deletionTimestamp"), tuple(meta.get("finalizers") or ()))
        if event["type"] == "DELETED":
            generations.pop(uid, None)
        elif generations.get(uid) == seen:
            return
        else:
            generations[uid] = seen
        wake(Key(namespace or "", name))

    async def policy(namespace: str | None, **_: Any) -> None:
        for key in known():
            if key.namespace == namespace:
                wake(key)

    async def owned(namespace: str | None, labels: Any, **_: Any) -> None:
        key = Key(namespace or "", labels[SPECULATOR_LABEL])
        touch(key)
        wake(key)

    async def pod(namespace: str | None, labels: Any, **_: Any) -> None:
        wake(Key(namespace or "", labels[SPECULATOR_LABEL]))

    labelled = {SPECULATOR_LABEL: kopf.PRESENT}
    kopf.on.event(GROUP, VERSION, "speculators", registry=registry)(speculator)
    kopf.on.event(GROUP, VERSION, "trainingpolicies", registry=registry)(policy)
    kopf.on.event(GROUP, VERSION, "syncpolicies", registry=registry)(policy)
    kopf.on.event("", "v1", "pods", registry=registry, labels=labelled)(pod)
    for group, version, plural in OWNED:
        kopf.on.event(group, version, plural, registry=registry, labels=labelled)(owned)
    kopf.on.login(registry=registry, id="service-account")(kopf.login_with_service_account)
    kopf.on.login(registry=registry, id="kubeconfig")(kopf.login_with_kubeconfig)
    return registry
