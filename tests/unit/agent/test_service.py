"""The agent as a whole: when it is healthy, and what it says while nothing works."""

import asyncio
import time

import pytest

from speculator_runtime.agent.clock import SystemClock
from speculator_runtime.agent.engine import HttpEngine, make_engine
from speculator_runtime.agent.service import STALL_SECONDS, Agent
from speculator_runtime.contracts.control import DecodeMode
from speculator_runtime.contracts.plan import Arm, Plan
from speculator_runtime.contracts.settings import AgentSettings, SettingsError, StoreSettings
from speculator_runtime.storage import Ledger
from support.s3server import use_credentials
from support.simulated import SimulatedClock, SimulatedEngine


class Clock(SystemClock):
    """The real clock, which a test may set forward."""

    ahead = 0.0

    def monotonic(self):
        return super().monotonic() + self.ahead


@pytest.fixture
def settings(tmp_path, monkeypatch):
    use_credentials(monkeypatch)
    return AgentSettings(
        store=StoreSettings(bucket="bucket", endpoint="http://127.0.0.1:1", path_style=True),
        work_directory=str(tmp_path / "work"),
        trace_endpoint=f"ipc://{tmp_path}/traces",
        secrets_directory=str(tmp_path),
        pod="engine-0",
        pod_uid="uid",
    )


@pytest.fixture
async def agent(settings):
    clock = Clock()
    engine = SimulatedEngine(SimulatedClock(end=1e9))
    made = Agent(settings, engine, Ledger(settings.store), clock)
    made.clock, made.engine = clock, engine
    made.start()
    yield made
    await made.close()


async def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_the_agent_is_healthy_while_its_runner_goes_round_also_without_an_engine(agent):
    await until(lambda: agent.state().engine_healthy)
    agent.engine.away = True
    await until(lambda: not agent.state().engine_healthy)

    assert agent.healthy()
    assert agent.state().last_error == "no answer"


async def test_a_runner_that_stopped_going_round_is_not_healthy(agent):
    await until(lambda: agent.state().engine_healthy)

    agent.clock.ahead = STALL_SECONDS + 1

    assert not agent.healthy()


async def test_a_runner_that_failed_is_not_healthy_and_the_log_says_why(agent, caplog):
    await until(lambda: agent.state().engine_healthy)

    async def disk_is_full():
        raise OSError(28, "No space left on device")

    agent.engine.stats = disk_is_full
    await until(lambda: not agent.healthy())

    assert "the block runner failed" in caplog.text


async def test_a_plan_is_in_the_state_at_once_and_a_store_that_is_away_is_named(agent):
    plan = Plan.model_validate({"generation": 3, "stable": {"version": 1, "sha256": "a" * 64}, "resting_arm": "Stable"})

    assert agent.put_plan(plan).plan_generation == 3
    await until(lambda: agent.state().versions[0].reason == "StoreUnreachable")

    assert (agent.state().arm, agent.state().mode) == (Arm.TARGET_ONLY, DecodeMode.TARGET_ONLY)


async def test_an_engine_of_another_type_is_refused_at_the_start(settings):
    assert isinstance(make_engine(settings), HttpEngine)
    with pytest.raises(SettingsError, match="'sglang' is not driven"):
        make_engine(settings.model_copy(update={"engine_type": "sglang"}))
