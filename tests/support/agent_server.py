"""A real HTTP server that answers as an agent, for tests where no kubelet can run one. It serves the contract models.

Blocks come as fast as `block_pause` says, whatever the plan's block length: a canary takes seconds. Their speedups are
those of `speeds` (tokens per second by arm), with a little noise.
"""

import asyncio
import random
from dataclasses import dataclass, field

from aiohttp import web

from speculator_runtime.contracts.control import BucketCounters, DecodeMode
from speculator_runtime.contracts.plan import (
    AgentState,
    Arm,
    Block,
    BlockPage,
    LoadStatus,
    Plan,
    VersionRef,
    VersionState,
)

TARGET_DIGEST = "t" * 64
"""As in the manifests of `support.samples`."""


@dataclass
class AgentServer:
    """Start with `await start(address)`; `port` 8070 is what the operator calls."""

    pod: str
    pod_uid: str
    token: str = ""
    """Empty: any bearer token is good."""
    speeds: dict[Arm, float] = field(
        default_factory=lambda: {Arm.TARGET_ONLY: 100.0, Arm.STABLE: 130.0, Arm.CANDIDATE: 150.0}
    )
    block_pause: float = 0.03
    noise: float = 0.03
    produce: bool = True
    refuse: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Version -> reason and message with which the engine refuses it."""
    plan: Plan | None = None
    plans: list[Plan] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    served: int = 0
    state_requests: int = 0

    async def start(self, address: str, port: int = 8070) -> None:
        self._random = random.Random(self.pod_uid)
        app = web.Application(middlewares=[self._authorised])
        app.add_routes(
            [
                web.get("/v1/state", self._state),
                web.put("/v1/plan", self._plan),
                web.get("/v1/blocks", self._blocks),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port).start()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await self._runner.cleanup()

    def state(self) -> AgentState:
        plan = self.plan
        refs = [ref for ref in (plan.stable, plan.candidate) if ref] if plan else []
        arm = plan.resting_arm if plan else Arm.TARGET_ONLY
        return AgentState(
            pod=self.pod,
            pod_uid=self.pod_uid,
            plan_generation=plan.generation if plan else 0,
            engine_healthy=True,
            engine="test/1",
            engine_epoch="1",
            mode=DecodeMode.TARGET_ONLY if arm == Arm.TARGET_ONLY else DecodeMode.SPECULATIVE,
            arm=arm,
            loaded=refs[-1] if refs else None,
            live_digest="d" * 64,
            target_digest=TARGET_DIGEST,
            versions=[self._version(ref) for ref in refs],
            blocks_until=self.blocks[-1].index if self.blocks else -1,
        )

    def _version(self, ref: VersionRef) -> VersionState:
        if ref.version in self.refuse:
            reason, message = self.refuse[ref.version]
            return VersionState(ref=ref, status=LoadStatus.REFUSED, reason=reason, message=message)
        return VersionState(ref=ref, status=LoadStatus.LOADED)

    @web.middleware
    async def _authorised(self, request, handler):
        given = request.headers.get("Authorization", "")
        if not given.startswith("Bearer ") or (self.token and given != f"Bearer {self.token}"):
            return web.Response(status=401, text="bearer token required")
        return await handler(request)

    async def _state(self, request: web.Request) -> web.Response:
        self.state_requests += 1
        return self._json(self.state())

    async def _plan(self, request: web.Request) -> web.Response:
        plan = Plan.model_validate_json(await request.text())
        if self.plan and plan.generation < self.plan.generation:
            return web.Response(status=409, text=f"generation {self.plan.generation} is in force")
        if self.plan is None or plan.generation > self.plan.generation:
            self.plan, self.blocks = plan, []
            self.plans.append(plan)
        return self._json(self.state())

    async def _blocks(self, request: web.Request) -> web.Response:
        generation, after = int(request.query["generation"]), int(request.query["after"])
        found = [b for b in self.blocks if b.generation == generation and b.index > after]
        self.served += len(found)
        page = BlockPage(pod=self.pod, pod_uid=self.pod_uid, generation=generation, blocks=found)
        return self._json(page)

    @staticmethod
    def _json(model) -> web.Response:
        return web.Response(text=model.model_dump_json(), content_type="application/json")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.block_pause)
            plan = self.plan
            if not self.produce or plan is None or plan.switchback is None:
                continue
            arms = plan.switchback.arms
            index = len(self.blocks)
            order = random.Random(f"{plan.switchback.seed}/{index // len(arms)}").sample(arms, len(arms))
            self.blocks.append(self._block(plan, index, index // len(arms), order[index % len(arms)]))

    def _block(self, plan: Plan, index: int, round_number: int, arm: Arm) -> Block:
        ref = {Arm.STABLE: plan.stable, Arm.CANDIDATE: plan.candidate}.get(arm)
        steps, accepted = 200, 1 if arm == Arm.TARGET_ONLY else 2
        tokens = steps * accepted
        seconds = tokens / (self.speeds[arm] * self._random.lognormvariate(0, self.noise))
        counters = BucketCounters(
            steps=steps, sequences=steps, tokens=tokens, seconds=seconds, accept_histogram={accepted: steps}
        )
        return Block(
            pod=self.pod,
            pod_uid=self.pod_uid,
            generation=plan.generation,
            index=index,
            round=round_number,
            arm=arm,
            version=ref,
            started=1_700_000_000.0 + index,
            seconds=seconds,
            buckets={1: counters},
            domains={"default": counters},
            requests_finished=4,
            ttft_p50_seconds=0.1,
            ttft_p99_seconds=0.2,
        )
