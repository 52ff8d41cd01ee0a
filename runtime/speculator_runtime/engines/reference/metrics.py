"""Prometheus metrics `speculator_engine_*`, computed from the engine's counters when they are asked for."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from speculator_runtime.contracts.control import BucketCounters, DecodeMode

from .service import ControlService
from .stats import Statistics

_PREFIX = "speculator_engine_"


class EngineCollector(Collector):
    """One reading per scrape; nothing is kept here."""

    def __init__(self, service: ControlService, stats: Statistics) -> None:
        self._service = service
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        state, stats = self._service.state(), self._service.stats()
        yield _gauge("running_requests", "Requests that hold a slot.", state.running_requests)
        yield _gauge("waiting_requests", "Requests that wait for a slot.", state.waiting_requests)
        yield _gauge("drafter_version", "Version of the live drafter weights.", state.version)
        speculating = state.mode is DecodeMode.SPECULATIVE
        yield _gauge("speculation_active", "1 if decoding is speculative.", int(speculating))
        yield _counter("requests_finished", "Requests that ended well.", stats.requests_finished)
        yield _counter("requests_failed", "Requests that ended with an error of the engine.", stats.requests_failed)
        yield _counter("traces_captured", "Traces handed to the sender.", stats.traces_captured)
        yield _counter("traces_dropped", "Traces lost: queue full, refused, or not made.", stats.traces_dropped)
        yield _counter("drafting_faults", "Steps that fell back to target-only.", self._stats.drafting_faults)
        yield _counter("drafter_swaps", "Drafters swapped in since the start.", self._stats.swaps)
        yield _counter("prefill_tokens", "Prompt rows computed.", self._stats.prefill.rows)
        yield _counter("prefill_seconds", "Seconds spent on prompts.", self._stats.prefill.seconds)
        yield from _steps("", "bucket", stats.buckets)
        yield from _steps("domain_", "domain", stats.domains)
        ttft = stats.ttft_seconds
        yield SummaryMetricFamily(
            _PREFIX + "recent_ttft_seconds",
            "Time to first token of requests finished lately (a window, not since the start).",
            count_value=len(ttft),
            sum_value=sum(ttft),
        )


def registry_of(service: ControlService, stats: Statistics) -> CollectorRegistry:
    """A registry of its own, so that several engines can live in one process (tests)."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(service, stats))
    return registry


def _steps(prefix: str, label: str, groups: dict[int, BucketCounters] | dict[str, BucketCounters]) -> Iterator[Metric]:
    fields = {
        "decode_steps": "Decode steps.",
        "decode_sequences": "Sequences, summed over decode steps.",
        "decode_tokens": "Tokens committed by decode steps, bonus tokens included.",
        "decode_seconds": "Wall seconds of decode steps.",
    }
    for name, text in fields.items():
        if prefix and name == "decode_seconds":
            continue  # a step's seconds are not attributed to domains
        family = CounterMetricFamily(f"{_PREFIX}{prefix}{name}", text, labels=[label])
        for key, counters in groups.items():
            family.add_metric([str(key)], getattr(counters, name.removeprefix("decode_")))
        yield family
    family = CounterMetricFamily(
        f"{_PREFIX}{prefix}verify_outcomes",
        "Sequences in verify steps by tokens committed, bonus included.",
        labels=[label, "tokens"],
    )
    for key, counters in groups.items():
        for tokens, count in counters.accept_histogram.items():
            family.add_metric([str(key), str(tokens)], count)
    yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)
