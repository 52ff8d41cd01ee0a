"""The trainer's Prometheus metrics, in a registry of their own. Names begin `speculator_trainer_`."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .trainer import PAUSED, TRAINING, WAITING, Trainer

_PREFIX = "speculator_trainer"


class TrainerCollector(Collector):
    """Reads everything from the trainer when asked: nothing is kept twice."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def collect(self) -> Iterator[Metric]:
        """All families."""
        trainer, status = self._trainer, self._trainer.status()
        held = trainer.buffer.occupancy()
        yield _counter("steps", "Optimiser steps applied since the lineage began.", status.step)
        yield _counter("skipped_steps", "Updates that were not finite or exploded, not applied.", status.skipped_steps)
        yield _counter("requests_received", "Traces received by this process.", status.requests_received)
        yield _counter("requests_opted_out", "Traces of opted-out requests, not kept.", status.requests_opted_out)
        yield _counter("published", "Versions published since the lineage began.", status.published)
        yield _counter("checkpoint_uploads", "Checkpoints copied to S3.", trainer.uploads.uploaded)
        yield _counter("checkpoint_upload_failures", "Checkpoints not copied to S3.", trainer.uploads.failed)
        dropped = CounterMetricFamily(f"{_PREFIX}_requests_dropped", "Requests lost to training.", labels=["reason"])
        for counts in (trainer.intake.refused, trainer.buffer.dropped):
            for reason, count in sorted(counts.items()):
                dropped.add_metric([reason], count)
        yield dropped
        domains = GaugeMetricFamily(f"{_PREFIX}_buffer_samples", "Samples in the buffer.", labels=["domain"])
        for domain, count in held.domains.items():
            domains.add_metric([domain], count)
        yield domains
        yield _gauge("buffer_bytes", "Bytes in the buffer.", held.bytes)
        yield _gauge("buffer_high_water_bytes", "Most bytes ever in the buffer.", held.high_water_bytes)
        yield _gauge("buffer_fresh_samples", "Samples not trained on yet.", held.fresh)
        yield _gauge(
            "vocabulary_used_slots", "Used slots of the draft vocabulary.", trainer.lineage.learner.vocabulary.used
        )
        phase = GaugeMetricFamily(f"{_PREFIX}_phase", "1 for the phase training is in.", labels=["phase"])
        for name in (WAITING, TRAINING, PAUSED):
            phase.add_metric([name], float(status.phase == name))
        yield phase
        for name, text, value in (
            ("loss", "Running mean of the loss.", status.loss),
            (
                "accept_length",
                "Teacher-forced, on training rows: flatters.",
                status.train_accept_length,
            ),
            ("tokens_per_second", "Running mean of tokens trained on.", status.tokens_per_second),
        ):
            if value is not None:
                yield _gauge(name, text, value)


def exposition(trainer: Trainer) -> bytes:
    """The text format as of now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TrainerCollector(trainer))
    return generate_latest(registry)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)
