"""Prometheus metrics of the operator. Names begin with `speculator_`; a Speculator's series go when it goes."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from speculator_operator.api.status import Phase
from speculator_runtime.contracts.control import DecodeMode

PHASES = tuple(phase.value for phase in Phase)
MODES = tuple(mode.value for mode in DecodeMode)
_SERIES = ("namespace", "name")


class OperatorMetrics:
    """All metrics over one registry, so that two operators in one test process do not collide."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "speculator_reconcile_seconds",
            "Seconds of one pass over a Speculator.",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            "speculator_reconcile_errors", "Passes that ended in an error.", ["reason"], registry=self.registry
        )
        self.kube_requests = Counter(
            "speculator_kube_requests", "Requests to the API server.", ["method", "kind"], registry=self.registry
        )
        self.is_leader = Gauge("speculator_is_leader", "1 while this replica holds the Lease.", registry=self.registry)
        self.speculators = Gauge("speculator_speculators", "Speculators known to this replica.", registry=self.registry)
        self.verdicts = Counter(
            "speculator_verdicts", "Decisions written.", [*_SERIES, "verdict"], registry=self.registry
        )
        self.blocks = Counter(
            "speculator_blocks_stored", "Blocks stored as evidence.", [*_SERIES, "arm"], registry=self.registry
        )
        self.stable_version = self._gauge("stable_version", "Version serving; 0: none.")
        self.candidate_version = self._gauge("candidate_version", "Version in canary; 0: none.")
        self.speedup = self._gauge("speedup_estimate", "Measured speedup over target-only.")
        self.speedup_lower = self._gauge("speedup_lower", "Its always-valid lower bound.")
        self.pairs = self._gauge("gate_pairs", "Pairs of blocks behind the estimate.")
        self.ready_replicas = self._gauge("ready_replicas", "Engine pods that are ready.")
        self.mode = self._gauge("mode", "1 for the mode in force.", "mode")
        self.phase = self._gauge("phase", "1 for the phase in force.", "phase")
        self._series: dict[tuple[str, str], set[tuple[str, ...]]] = {}

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"speculator_{name}", text, [*_SERIES, *labels], registry=self.registry)

    def show(
        self,
        namespace: str,
        name: str,
        *,
        stable: int,
        candidate: int,
        mode: str,
        phase: str,
        speedup: float | None,
        speedup_lower: float | None,
        pairs: int,
        ready_replicas: int,
    ) -> None:
        """Set the series of one Speculator; a speedup that is not known has no series."""
        key = (namespace, name)
        self.stable_version.labels(*key).set(stable)
        self.candidate_version.labels(*key).set(candidate)
        self.pairs.labels(*key).set(pairs)
        self.ready_replicas.labels(*key).set(ready_replicas)
        for gauge, value in ((self.speedup, speedup), (self.speedup_lower, speedup_lower)):
            if value is None:
                _remove(gauge, key)
            else:
                gauge.labels(*key).set(value)
        for known, gauge, now in ((MODES, self.mode, mode), (PHASES, self.phase, phase)):
            for label in known:
                gauge.labels(*key, label).set(1 if label == now else 0)

    def forget(self, namespace: str, name: str) -> None:
        """Remove the series of a Speculator that is gone."""
        key = (namespace, name)
        for gauge in (
            self.stable_version,
            self.candidate_version,
            self.speedup,
            self.speedup_lower,
            self.pairs,
            self.ready_replicas,
        ):
            _remove(gauge, key)
        for known, gauge in ((MODES, self.mode), (PHASES, self.phase)):
            for label in known:
                _remove(gauge, (*key, label))

    def text(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


def _remove(gauge: Gauge, key: tuple[str, ...]) -> None:
    # remove() of labels that were never set is a no-op in prometheus_client.
    gauge.remove(*key)
