"""Agents and trainer over real HTTP: answers are contract models, failures are values."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from speculator_operator.kube.agents import CallFailure, Endpoint, PodClients, http_url
from speculator_operator.kube.observe import last_indices, read_agents, read_blocks
from speculator_operator.reconcile.podhealth import PodView
from speculator_runtime.contracts.plan import AgentState, Arm, Plan, Switchback, VersionRef
from support.agent_server import AgentServer
from support.s3server import free_port

CANARY = Plan(
    generation=3,
    candidate=VersionRef(version=1, sha256="a" * 64),
    switchback=Switchback(arms=(Arm.TARGET_ONLY, Arm.CANDIDATE), block_seconds=5, washout_seconds=1, seed=1),
)


@pytest.fixture
async def clients() -> AsyncIterator[PodClients]:
    async with aiohttp.ClientSession() as session:
        yield PodClients(session, seconds=0.5)


@pytest.fixture
async def agent() -> AsyncIterator[tuple[AgentServer, Endpoint]]:
    server, port = AgentServer("engine-0", "uid-0", token="secret", block_pause=0.005), free_port()
    await server.start("127.0.0.1", port)
    yield server, Endpoint(http_url("127.0.0.1", port), "secret")
    await server.stop()


async def test_a_plan_is_taken_and_its_blocks_can_be_read_on_from_any_index(clients, agent) -> None:
    server, endpoint = agent
    state = await clients.put_plan(endpoint, CANARY)
    assert isinstance(state, AgentState)
    assert state.plan_generation == 3
    while len(server.blocks) < 6:
        await asyncio.sleep(0.01)
    server.produce = False
    page = await clients.blocks(endpoint, 3, 2)
    assert [block.index for block in page.blocks][:3] == [3, 4, 5]
    assert (await clients.blocks(endpoint, 2, -1)).blocks == []


async def test_an_older_plan_is_refused_with_409(clients, agent) -> None:
    _, endpoint = agent
    await clients.put_plan(endpoint, CANARY)
    answer = await clients.put_plan(endpoint, Plan(generation=2))
    assert isinstance(answer, CallFailure)
    assert answer.status == 409
    assert "generation 3" in answer.message


async def test_a_wrong_token_is_a_failure_that_names_the_status(clients, agent) -> None:
    _, endpoint = agent
    answer = await clients.agent_state(Endpoint(endpoint.url, "wrong"))
    assert isinstance(answer, CallFailure)
    assert "HTTP 401" in str(answer)


async def test_nobody_listening_is_a_failure_with_the_address(clients) -> None:
    answer = await clients.agent_state(Endpoint(http_url("127.0.0.1", free_port()), "t"))
    assert isinstance(answer, CallFailure)
    assert answer.status == 0
    assert "127.0.0.1" in str(answer)


async def test_a_replica_that_accepts_and_never_answers_delays_the_others_by_its_time_limit_only(
    clients, agent
) -> None:
    _, endpoint = agent
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        dead, alive = await asyncio.gather(
            clients.agent_state(Endpoint(http_url("127.0.0.1", silent.getsockname()[1]), "t")),
            clients.agent_state(endpoint),
        )
    assert isinstance(dead, CallFailure)
    assert isinstance(alive, AgentState)
    assert time.monotonic() - began < 2


async def test_an_answer_of_another_schema_is_a_failure_not_a_crash(clients) -> None:
    async def odd(_: web.Request) -> web.Response:
        return web.json_response({"schema_version": 2})

    app = web.Application()
    app.add_routes([web.get("/v1/state", odd)])
    runner, port = web.AppRunner(app), free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    answer = await clients.agent_state(Endpoint(http_url("127.0.0.1", port), "t"))
    await runner.cleanup()
    assert isinstance(answer, CallFailure)
    assert "AgentState" in answer.message


def pod(uid: str, address: str) -> PodView:
    return PodView("engine-0", uid, "engine", address, ready=True, terminating=False, problem=None)


async def test_an_address_that_answers_for_another_pod_is_not_believed(clients, monkeypatch) -> None:
    server, address, port = AgentServer("engine-0", "new-uid"), "127.0.0.1", free_port()
    await server.start(address, port)
    monkeypatch.setattr("speculator_operator.kube.observe.AGENT_PORT", port)
    view = await read_agents(clients, [pod("old-uid", address)], "t")
    await server.stop()
    assert view.states == {}
    assert "new-uid" in view.failures["old-uid"]


async def test_only_blocks_after_the_last_stored_one_are_taken(clients, monkeypatch) -> None:
    server, address, port = AgentServer("engine-0", "uid-0", block_pause=0.002), "127.0.0.1", free_port()
    await server.start(address, port)
    monkeypatch.setattr("speculator_operator.kube.observe.AGENT_PORT", port)
    await clients.put_plan(Endpoint(http_url(address, port), "t"), CANARY)
    while len(server.blocks) < 8:
        await asyncio.sleep(0.01)
    server.produce = False
    states = {"uid-0": server.state()}
    first = await read_blocks(clients, [pod("uid-0", address)], states, "t", 3, {})
    stored = last_indices(first[:5], 3)
    rest = await read_blocks(clients, [pod("uid-0", address)], states, "t", 3, stored)
    none = await read_blocks(clients, [pod("uid-0", address)], states, "t", 3, last_indices(first, 3))
    other = await read_blocks(clients, [pod("uid-0", address)], states, "t", 4, {})
    await server.stop()
    assert [b.index for b in rest] == [b.index for b in first][5:]
    assert none == other == []
