"""Liveness is about reconciling; a replica that waits for the Lease is well and ready."""

import aiohttp
import pytest

from speculator_operator.kube.health import Pulse, serve_health, unhealthy_reason
from speculator_operator.metrics import OperatorMetrics
from support.s3server import free_port

WELL = {"leader": True, "speculators": 3, "since_success": 1.0, "overdue": 0.0, "since_lease_attempt": 1.0}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"since_success": 200.0}, "no pass over any Speculator"),
        ({"overdue": 200.0}, "due for 200 s"),
        ({"since_lease_attempt": 200.0}, "Lease"),
        ({"since_lease_attempt": 200.0, "leader": False}, "Lease"),
    ],
)
def test_what_makes_the_process_unhealthy(changes, word) -> None:
    assert word in unhealthy_reason(Pulse(**(WELL | changes)), 180.0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"leader": False, "since_success": 9999.0, "overdue": 9999.0},
        {"speculators": 0, "since_success": 9999.0},
    ],
)
def test_what_does_not(changes) -> None:
    assert unhealthy_reason(Pulse(**(WELL | changes)), 180.0) == ""


async def test_the_pages_say_it() -> None:
    pulse, metrics, port = dict(WELL), OperatorMetrics(), free_port()
    metrics.is_leader.set(1)
    runner = await serve_health("127.0.0.1", port, metrics, lambda: Pulse(**pulse), 180.0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def page(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert await page("/healthz") == (200, "ok")
        assert await page("/readyz") == (200, "leader")
        assert "speculator_is_leader 1.0" in (await page("/metrics"))[1]
        pulse |= {"since_success": 500.0}
        status, text = await page("/healthz")
        assert status == 503
        assert "500 s" in text
        pulse |= {"leader": False}
        assert await page("/healthz") == (200, "ok")
        assert await page("/readyz") == (200, "standby")
    await runner.cleanup()


def test_the_series_of_a_speculator_that_is_gone_are_gone() -> None:
    metrics = OperatorMetrics()
    facts = {"stable": 3, "candidate": 0, "mode": "Speculative", "phase": "Stable", "pairs": 30, "ready_replicas": 2}
    metrics.show("ns", "chat", speedup=1.4, speedup_lower=1.2, **facts)
    text = metrics.text().decode()
    assert 'speculator_speedup_lower{name="chat",namespace="ns"} 1.2' in text
    assert 'speculator_phase{name="chat",namespace="ns",phase="Stable"} 1.0' in text
    assert 'speculator_phase{name="chat",namespace="ns",phase="Canary"} 0.0' in text
    metrics.show("ns", "chat", speedup=None, speedup_lower=None, **facts)
    assert "speculator_speedup_estimate{" not in metrics.text().decode(), "not known is not a number"
    metrics.forget("ns", "chat")
    metrics.forget("ns", "chat")
    assert 'name="chat"' not in metrics.text().decode()
