"""The agent as a whole: plan rules, state, blocks. What the HTTP server and the main program stand on."""

import asyncio
import logging
from pathlib import Path

from speculator_runtime.contracts.control import DecodeMode
from speculator_runtime.contracts.plan import AgentState, Block, BlockPage, Plan, VersionRef
from speculator_runtime.contracts.settings import AgentSettings
from speculator_runtime.storage import Ledger
from speculator_runtime.traces.forwarder import ForwarderCounters, ForwardPolicy, TraceForwarder
from speculator_runtime.traces.keys import agent_keys

from .accounting import Replica
from .clock import Clock
from .engine import Engine
from .journal import Journal
from .metrics import AgentMetrics
from .runner import Runner
from .versions import VersionStore

log = logging.getLogger(__name__)
STALL_SECONDS = 180.0
"""Without a sign of life from the runner for so long (a load may take two minutes) the agent is not healthy."""


class StalePlanError(Exception):
    """A plan that must not replace the one in force; the message says which that is."""


class Agent:
    """One replica's agent. Use from one event loop."""

    def __init__(self, settings: AgentSettings, engine: Engine, ledger: Ledger, clock: Clock) -> None:
        """Raises OSError (work directory), zmq.ZMQError (trace endpoint), TraceKeyError. Needs a running event loop."""
        self.replica = Replica(settings.pod, settings.pod_uid)
        self.metrics = AgentMetrics()
        self._engine = engine
        self._clock = clock
        work = Path(settings.work_directory)
        self._journal = Journal(work, settings.pod_uid)
        self._versions = VersionStore(work / "versions", ledger, self._journal, clock, settings.keep_versions)
        self._runner = Runner(
            self.replica,
            engine,
            self._versions,
            self._journal,
            clock,
            on_block=self.metrics.count_block,
            on_load=self.metrics.loads.observe,
        )
        secrets = Path(settings.secrets_directory)
        self._forwarder = TraceForwarder(
            settings.trace_endpoint,
            settings.trainer_endpoint,
            lambda: agent_keys(secrets),
            ForwardPolicy(settings.trace_share, settings.opt_out_default, settings.pod),
            settings.trace_queue_bytes,
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the plan and to forward traces."""
        self._forwarder.start()
        self._task = asyncio.create_task(self._runner.run(), name="runner")
        self._task.add_done_callback(_say_why)

    async def close(self) -> None:
        """Stop; the engine keeps its mode and drafter."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._versions.close()
        await self._engine.close()
        await asyncio.to_thread(self._forwarder.close)

    def put_plan(self, plan: Plan) -> AgentState:
        """Adopt a plan. The one in force is a no-op; raises StalePlanError for an older or a contradicting one."""
        current = self._runner.plan
        if current is not None and plan.generation < current.generation:
            raise StalePlanError(
                f"plan generation {plan.generation} is older than {current.generation}, which is in force"
            )
        if current is not None and plan.generation == current.generation:
            if plan != current:
                raise StalePlanError(
                    f"another plan of generation {plan.generation} is in force; a change needs a higher generation"
                )
            return self.state()
        log.info("plan generation %d", plan.generation)
        self._runner.adopt(plan)
        return self.state()

    def state(self) -> AgentState:
        """What the replica runs, as far as the last look at the engine told."""
        runner, engine, stats = self._runner, self._runner.engine_state, self._runner.engine_stats
        traces = self._forwarder.counters
        loaded = VersionRef(version=engine.version, sha256=engine.sha256) if engine and engine.sha256 else None
        return AgentState(
            pod=self.replica.pod,
            pod_uid=self.replica.pod_uid,
            plan_generation=runner.plan.generation if runner.plan else 0,
            engine_healthy=not runner.engine_error and bool(engine and engine.healthy),
            engine=engine.engine if engine else "",
            engine_epoch=stats.epoch if stats else "",
            mode=engine.mode if engine else DecodeMode.TARGET_ONLY,
            arm=runner.applied.arm,
            loaded=loaded,
            live_digest=engine.live_digest if engine else "",
            target_digest=engine.target_digest if engine else "",
            versions=self._versions.states(),
            blocks_until=runner.blocks_until,
            running_requests=engine.running_requests if engine else 0,
            traces_forwarded=traces.forwarded,
            traces_dropped=traces.dropped + traces.refused,
            last_error=runner.engine_error or runner.last_error,
        )

    def blocks(self, generation: int, after: int) -> BlockPage:
        """Blocks of a plan generation with an index above `after`."""
        found: list[Block] = self._journal.read(generation, after)
        return BlockPage(pod=self.replica.pod, pod_uid=self.replica.pod_uid, generation=generation, blocks=found)

    def healthy(self) -> bool:
        """False when the runner ended or has stopped going round: restarting the agent is the cure."""
        alive = self._task is not None and not self._task.done()
        return alive and self._clock.monotonic() - self._runner.heartbeat < STALL_SECONDS

    def exposition(self) -> bytes:
        """Prometheus metrics as text."""
        return self.metrics.exposition(self.state(), self.trace_counters(), self._journal.blocks_lost_unread)

    def trace_counters(self) -> ForwarderCounters:
        """Of the trace forwarder."""
        return self._forwarder.counters


def _say_why(task: asyncio.Task[None]) -> None:
    """The runner never ends by itself: /healthz fails from now on, and the log says why."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the block runner failed", exc_info=error)
