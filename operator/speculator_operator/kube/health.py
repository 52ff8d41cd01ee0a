"""`/healthz`, `/readyz` and `/metrics` of the operator.

Liveness is about reconciling, not about this HTTP task: it fails when passes stop while this replica leads, or when
nobody renews or tries the Lease any more. A replica that waits for the Lease is ready: it can take over.
"""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from speculator_operator.metrics import OperatorMetrics


@dataclass(frozen=True)
class Pulse:
    """What liveness is judged by, all in seconds."""

    leader: bool
    speculators: int
    since_success: float
    overdue: float
    since_lease_attempt: float


def unhealthy_reason(pulse: Pulse, watchdog_seconds: float) -> str:
    """Why the process should be restarted; empty when it need not be."""
    if pulse.since_lease_attempt > watchdog_seconds:
        return f"the Lease was not tried for {pulse.since_lease_attempt:.0f} s"
    if not pulse.leader or not pulse.speculators:
        return ""
    if pulse.overdue > watchdog_seconds:
        return f"a Speculator has been due for {pulse.overdue:.0f} s"
    if pulse.since_success > watchdog_seconds:
        return f"no pass over any Speculator succeeded for {pulse.since_success:.0f} s"
    return ""


async def serve_health(
    host: str, port: int, metrics: OperatorMetrics, pulse: Callable[[], Pulse], watchdog_seconds: float
) -> web.AppRunner:
    """Start the server; the caller cleans the runner up. Raises OSError if the port is taken."""

    async def healthz(_: web.Request) -> web.Response:
        reason = unhealthy_reason(pulse(), watchdog_seconds)
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="leader" if pulse().leader else "standby")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
