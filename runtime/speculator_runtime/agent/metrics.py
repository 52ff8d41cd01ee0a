"""The agent's Prometheus metrics, in a registry of their own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from speculator_runtime.contracts.control import DecodeMode
from speculator_runtime.contracts.plan import AgentState, Arm
from speculator_runtime.traces.forwarder import ForwarderCounters


class AgentMetrics:
    """Names begin `speculator_agent_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._blocks = Counter("speculator_agent_blocks", "Blocks emitted.", ["arm", "valid"], registry=self.registry)
        self.loads = Histogram(
            "speculator_agent_drafter_load_seconds",
            "Time the engine took to load a drafter.",
            buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
            registry=self.registry,
        )
        self._gauges = {
            name: Gauge(f"speculator_agent_{name}", text, registry=self.registry)
            for name, text in {
                "engine_healthy": "1 while the engine answers and says that it is healthy.",
                "speculative": "1 in Speculative mode, 0 in target-only.",
                "plan_generation": "Generation of the plan in force, 0 before the first.",
                "loaded_version": "Version of the live drafter.",
                "traces_waiting": "Traces that wait for the trainer.",
                "traces_waiting_bytes": "Bytes of them.",
                "blocks_lost_unread": "Blocks dropped before anybody read them.",
            }.items()
        }
        self._traces = Gauge(
            "speculator_agent_traces",
            "Traces since the start, by outcome.",
            ["outcome"],
            registry=self.registry,
        )

    def count_block(self, valid: bool, arm: Arm) -> None:
        """A block was emitted."""
        self._blocks.labels(arm=arm.value, valid=str(valid).lower()).inc()

    def exposition(self, state: AgentState, traces: ForwarderCounters, blocks_lost_unread: int) -> bytes:
        """The text format, with gauges as of now."""
        values = {
            "engine_healthy": float(state.engine_healthy),
            "speculative": float(state.mode is DecodeMode.SPECULATIVE),
            "plan_generation": float(state.plan_generation),
            "loaded_version": float(state.loaded.version if state.loaded else 0),
            "traces_waiting": float(traces.waiting_traces),
            "traces_waiting_bytes": float(traces.waiting_bytes),
            "blocks_lost_unread": float(blocks_lost_unread),
        }
        for name, value in values.items():
            self._gauges[name].set(value)
        for outcome in ("received", "forwarded", "dropped", "opted_out", "not_sampled", "refused"):
            self._traces.labels(outcome=outcome).set(getattr(traces, outcome))
        return generate_latest(self.registry)
