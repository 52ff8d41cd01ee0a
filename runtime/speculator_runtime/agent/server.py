"""The agent's HTTP routes (contracts/plan.py). Thin: each parses, calls the agent once, answers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response

from speculator_runtime.bearer import bearer_guard
from speculator_runtime.contracts.plan import AgentState, BlockPage, Plan

from .service import Agent, StalePlanError


def make_app(make_agent: Callable[[], Agent], token_file: Path) -> FastAPI:
    """The application; the agent is made when the event loop runs and closed with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        agent = make_agent()
        app.state.agent = agent
        agent.start()
        try:
            yield
        finally:
            await agent.close()

    app = FastAPI(title="speculator-agent", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    def agent_of(request: Request) -> Agent:
        agent: Agent = request.app.state.agent
        return agent

    agent_here = Annotated[Agent, Depends(agent_of)]
    protected = [Depends(bearer_guard(token_file))]

    # Coroutines, though they wait for nothing: the agent's state belongs to the event loop, not to a thread pool.

    @app.put("/v1/plan", dependencies=protected)
    async def put_plan(plan: Plan, agent: agent_here) -> AgentState:
        try:
            return agent.put_plan(plan)
        except StalePlanError as error:
            raise HTTPException(409, str(error)) from error

    @app.get("/v1/state", dependencies=protected)
    async def get_state(agent: agent_here) -> AgentState:
        return agent.state()

    @app.get("/v1/blocks", dependencies=protected)
    async def get_blocks(
        agent: agent_here, generation: Annotated[int, Query(ge=1)], after: Annotated[int, Query(ge=-1)] = -1
    ) -> BlockPage:
        return agent.blocks(generation, after)

    @app.get("/healthz")
    async def healthz(agent: agent_here) -> Response:
        healthy = agent.healthy()
        return Response("ok\n" if healthy else "the block runner has stopped\n", 200 if healthy else 503)

    @app.get("/readyz")
    async def readyz() -> Response:
        # Serving must not depend on us: ready means that this server answers, whatever the engine or the store do.
        return Response("ok\n")

    @app.get("/metrics")
    async def metrics(agent: agent_here) -> Response:
        return Response(agent.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
