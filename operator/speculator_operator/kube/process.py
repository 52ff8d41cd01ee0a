"""The operator process: leadership, watches, workers and the health server, in one event loop."""

import asyncio
import contextlib
import logging
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp

from speculator_operator.kube.agents import PodClients
from speculator_operator.kube.client import (
    KINDS,
    Kube,
    KubeError,
    KubeObject,
    NotLeaderError,
    Requester,
    api_requester,
    connect,
)
from speculator_operator.kube.health import Pulse, serve_health
from speculator_operator.kube.lease import Leadership, LeaseSettings
from speculator_operator.kube.reconciler import Reconciler
from speculator_operator.kube.watch import Watch, WatchSinks
from speculator_operator.kube.workers import Key, Workers
from speculator_operator.metrics import OperatorMetrics
from speculator_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)


class Process:
    """Wires the parts; `run` ends when the process is told to stop, or raises what a part failed with."""

    def __init__(self, settings: OperatorSettings, request: Requester, session: aiohttp.ClientSession) -> None:
        self.settings = settings
        self.metrics = OperatorMetrics()
        counted = counting(request, self.metrics)
        self.leadership = Leadership(
            counted,
            LeaseSettings(
                namespace=settings.lease_namespace,
                name=settings.lease_name,
                identity=settings.identity,
                duration=settings.lease_seconds,
                retry=settings.lease_seconds / 7.5,
                margin=settings.lease_seconds / 5,
            ),
        )
        self.kube = Kube(counted, self.leadership.check)
        self.executor = ThreadPoolExecutor(settings.loops.concurrent, thread_name_prefix="ledger")
        self.reconciler = Reconciler(
            self.kube, PodClients(session), self.executor, settings, self.metrics, self.leadership.check
        )
        loops = settings.loops
        self.workers = Workers(
            self.reconciler,
            failed=self._failed,
            concurrent=loops.concurrent,
            backoff_first=loops.backoff_first_seconds,
            backoff_limit=loops.backoff_limit_seconds,
        )
        self._led_since = time.monotonic()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT, or until a part fails: then raises what it failed with."""
        settings = self.settings
        runner = await serve_health(
            settings.host, settings.port, self.metrics, self.pulse, settings.loops.watchdog_seconds
        )
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        sinks = WatchSinks(self._wake, self.reconciler.touch_objects, self._wake_namespace)
        watch = Watch(sinks, settings.namespaces, settings.loops.concurrent)
        tasks = {
            asyncio.create_task(stop.wait(), name="signal"),
            asyncio.create_task(watch.run(), name="watch"),
            asyncio.create_task(self.leadership.run(), name="leadership"),
            asyncio.create_task(self._lead(), name="lead"),
            asyncio.create_task(self._discover(), name="discover"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                logger.info("%s: stopping", task.get_name())
        finally:
            await self.workers.stop()
            for task in tasks:
                task.cancel()  # Leadership gives its Lease back on its way out.
            await asyncio.gather(*tasks, return_exceptions=True)
            await runner.cleanup()
            self.executor.shutdown(wait=False, cancel_futures=True)

    async def _lead(self) -> None:
        """On a gain everything is looked at afresh; on a loss all passes stop."""
        while True:
            await self.leadership.changed.wait()
            self.leadership.changed.clear()
            leads = self.leadership.is_leader
            self.metrics.is_leader.set(1 if leads else 0)
            await self.workers.stop()
            self.reconciler.forget_all()
            if leads:
                self.workers.last_success = self._led_since = time.monotonic()
                await self._list()

    async def _discover(self) -> None:
        """The safety net under the watches: every Speculator has a worker, whatever events were lost."""
        while True:
            await asyncio.sleep(self.settings.loops.discovery_seconds)
            if self.leadership.is_leader:
                await self._list()

    async def _list(self) -> None:
        known = set(self.workers.known())
        try:
            for namespace in self.settings.namespaces or (None,):
                for obj in await self.kube.list("Speculator", namespace):
                    key = Key(obj["metadata"]["namespace"], obj["metadata"]["name"])
                    if key not in known:
                        self._wake(key)
        except KubeError as error:
            logger.warning("Speculators could not be listed: %s", error)
        self.metrics.speculators.set(len(self.workers.known()))

    def _wake(self, key: Key) -> None:
        if self.leadership.is_leader:
            self.workers.wake(key)

    def _wake_namespace(self, namespace: str) -> None:
        for key in self.workers.known():
            if key.namespace == namespace:
                self._wake(key)

    def _failed(self, key: Key, error: Exception) -> None:
        reason = error.reason if isinstance(error, KubeError) else type(error).__name__
        self.metrics.reconcile_errors.labels(reason or "Unknown").inc()
        if isinstance(error, KubeError | NotLeaderError):
            logger.warning("%s: %s", key, error)
        else:
            logger.error("%s: pass failed: %s", key, error, exc_info=error)

    def pulse(self) -> Pulse:
        """What liveness is judged by."""
        now = time.monotonic()
        return Pulse(
            leader=self.leadership.is_leader,
            speculators=len(self.workers.known()),
            since_success=now - self.workers.last_success,
            overdue=self.workers.overdue_seconds(),
            since_lease_attempt=now - self.leadership.last_attempt,
        )


def counting(request: Requester, metrics: OperatorMetrics) -> Requester:
    """Counts requests by method and kind, tried ones included."""
    kinds = {kind.plural: name for name, kind in KINDS.items()}

    async def counted(method: str, path: str, *rest: Any, **options: Any) -> KubeObject:
        kind = next((kinds[part] for part in reversed(path.split("/")) if part in kinds), "other")
        metrics.kube_requests.labels(method, kind).inc()
        return await request(method, path, *rest, **options)

    return counted


async def run_operator(settings: OperatorSettings) -> None:
    """Connect, run, close."""
    api = await connect()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await Process(settings, api_requester(api), session).run()
