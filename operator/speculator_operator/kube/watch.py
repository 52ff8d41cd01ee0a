"""kopf watches what a Speculator depends on; each event only wakes a worker.

Event handlers alone: kopf then stores nothing in objects (no progress, no diff-base, no finalizer of its own). Names
are set all the same, so that a handler of another sort would not write under kopf's defaults.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
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
    # It says that signals are ignored in a thread; they are ours to take.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)


@dataclass(frozen=True)
class WatchSinks:
    """Who hears of events; called in the loop that `Watch` was started from."""

    wake: Callable[[Key], None]
    """Look at a Speculator."""
    touch: Callable[[Key], None]
    """Its owned objects changed."""
    wake_namespace: Callable[[str], None]
    """A policy changed; policies do not name those that use them."""


def watch_registry(sinks: WatchSinks) -> kopf.OperatorRegistry:
    """Handlers for everything watched."""
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
        sinks.wake(Key(namespace or "", name))

    async def policy(namespace: str | None, **_: Any) -> None:
        sinks.wake_namespace(namespace or "")

    async def owned(namespace: str | None, labels: Any, **_: Any) -> None:
        key = Key(namespace or "", labels[SPECULATOR_LABEL])
        sinks.touch(key)
        sinks.wake(key)

    async def pod(namespace: str | None, labels: Any, **_: Any) -> None:
        sinks.wake(Key(namespace or "", labels[SPECULATOR_LABEL]))

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


class Watch:
    """kopf in a thread and an event loop of its own.

    In ours it would take the signals, and when it stops it waits five seconds for every task it did not start, then
    cancels them: a pass in the middle, and the task that gives the Lease back.
    """

    def __init__(self, sinks: WatchSinks, namespaces: tuple[str, ...], workers: int) -> None:
        self._sinks = sinks
        self._namespaces = namespaces
        self._workers = workers
        self._stop = threading.Event()

    async def run(self) -> None:
        """Until cancelled, or until kopf ends, which it does not by itself: then raises RuntimeError."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        thread = threading.Thread(target=self._thread, args=(loop, ended), name="kopf", daemon=True)
        thread.start()
        try:
            error = await ended
        finally:
            self._stop.set()
        raise RuntimeError(f"the watch ended: {error}") from error

    def _thread(self, loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[BaseException | None]") -> None:
        def there(sink: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any) -> None:
                with contextlib.suppress(RuntimeError):  # The loop is closed: the process ends.
                    loop.call_soon_threadsafe(sink, *arguments)

            return call

        def tell(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(error)

        sinks = WatchSinks(there(self._sinks.wake), there(self._sinks.touch), there(self._sinks.wake_namespace))
        settings = kopf.OperatorSettings()
        operator_settings(settings, self._workers)
        settings.scanning.disabled = bool(self._namespaces)
        error: BaseException | None = None
        try:
            kopf.run(
                registry=watch_registry(sinks),
                settings=settings,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                standalone=True,
                stop_flag=self._stop,
            )
        except BaseException as caught:  # noqa: BLE001 - handed to the main loop, which ends the process with it
            error = caught
        there(tell)(error)
