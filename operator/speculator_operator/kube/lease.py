"""Leadership by a coordination.k8s.io Lease, fenced by the monotonic clock.

The algorithm is client-go's: a candidate takes the Lease when it has not SEEN it change for its whole duration (no
clock of another machine is compared), the holder renews it, and every write carries the resourceVersion that was read.
`Leadership.check` is the fence of every other write: it raises once the lease could have been taken over, judged by the
monotonic time at which the last successful renewal was SENT, less a margin for a request in flight.

The official client's elector is not used: it compares wall clocks in local time and cannot say until when it holds.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from speculator_operator.kube.client import KINDS, KubeError, KubeObject, NotLeaderError, Requester

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseSettings:
    """Times in seconds; margin is how long before expiry the holder stops writing (requests in flight)."""

    namespace: str
    name: str
    identity: str
    duration: float = 15.0
    retry: float = 2.0
    margin: float = 3.0


class Leadership:
    """Whether this process leads. One task runs `run`; everybody else calls `check` or `is_leader`."""

    def __init__(
        self,
        request: Requester,
        settings: LeaseSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._request = request
        self._settings = settings
        self._monotonic = monotonic
        self._now = now
        self._held_until = float("-inf")
        self._seen_version = ""
        self._seen_at = float("-inf")
        self.last_attempt = monotonic()
        """Monotonic time of the last attempt to acquire or renew, for liveness."""
        self.changed = asyncio.Event()
        """Set on every gain or loss; the waiter clears it."""

    @property
    def is_leader(self) -> bool:
        """Whether writes are allowed at this moment."""
        return self._monotonic() < self._held_until

    def check(self) -> float:
        """The fence: raises NotLeaderError unless the Lease is held and not about to expire.

        Returns the seconds until nobody else can have taken the Lease: how long a write may be in flight.
        """
        left = self._held_until - self._monotonic()
        if left <= 0:
            raise NotLeaderError(f"{self._settings.identity} does not hold Lease {self._settings.name} any more")
        return left + self._settings.margin

    async def run(self) -> None:
        """Acquire and renew until cancelled, then give the Lease back so that another replica takes over at once."""
        led = False
        try:
            while True:
                await self.step()
                if self.is_leader != led:
                    led = self.is_leader
                    logger.info("leadership of %s: %s", self._settings.name, "gained" if led else "lost")
                    self.changed.set()
                await asyncio.sleep(self._settings.retry)
        finally:
            await self._release()

    async def step(self) -> None:
        """One attempt to acquire or renew. An API error changes nothing: what is held runs out by itself."""
        sent = self.last_attempt = self._monotonic()
        try:
            lease = await self._read()
            if lease is None:
                written = await self._write("POST", self._fresh(0))
            elif self._may_take(lease, sent):
                written = await self._write("PUT", self._renewed(lease))
            else:
                self._held_until = float("-inf")
                return
        except KubeError as error:
            logger.warning("lease %s: %s", self._settings.name, error)
            return
        self._seen_version = written["metadata"]["resourceVersion"]
        self._seen_at = sent
        self._held_until = sent + self._settings.duration - self._settings.margin

    def _may_take(self, lease: KubeObject, now: float) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, now
        if holder in ("", self._settings.identity):
            return True
        return now >= self._seen_at + float(spec.get("leaseDurationSeconds") or self._settings.duration)

    def _timestamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _fresh(self, transitions: int) -> KubeObject:
        return {
            "apiVersion": KINDS["Lease"].api_version,
            "kind": "Lease",
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
            "spec": {
                "holderIdentity": self._settings.identity,
                "leaseDurationSeconds": round(self._settings.duration),
                "acquireTime": self._timestamp(),
                "renewTime": self._timestamp(),
                "leaseTransitions": transitions,
            },
        }

    def _renewed(self, lease: KubeObject) -> KubeObject:
        spec = dict(lease.get("spec") or {})
        if spec.get("holderIdentity") == self._settings.identity:
            spec["renewTime"] = self._timestamp()
            return lease | {"spec": spec}
        return lease | {"spec": self._fresh(int(spec.get("leaseTransitions") or 0) + 1)["spec"]}

    async def _read(self) -> KubeObject | None:
        try:
            return await self._call("GET", self._settings.name, None)
        except KubeError as error:
            if error.not_found:
                return None
            raise

    async def _write(self, method: str, lease: KubeObject) -> KubeObject:
        return await self._call(method, self._settings.name if method == "PUT" else "", lease)

    async def _call(self, method: str, name: str, body: Any) -> KubeObject:
        # A request that outlives the margin must not be counted as a renewal: it is cut off before.
        path = KINDS["Lease"].path(self._settings.namespace, name)
        what = f"{method} Lease {self._settings.namespace}/{self._settings.name}"
        try:
            async with asyncio.timeout(self._settings.margin):
                return await self._request(method, path, [], body, "application/json", what)
        except TimeoutError as error:
            raise KubeError(what, 0, "Timeout", f"no answer within {self._settings.margin} s") from error

    async def _release(self) -> None:
        if not self.is_leader:
            return
        self._held_until = float("-inf")
        try:
            lease = await self._read()
            if lease and (lease.get("spec") or {}).get("holderIdentity") == self._settings.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._timestamp()}
                await self._write("PUT", lease)
        except KubeError as error:
            logger.warning("could not give the lease back, it will expire: %s", error)
