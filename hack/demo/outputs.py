"""What the demo leaves behind in demo-output/: the figures. Reads what was seen, decides nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculator_runtime.traffic.records import Record
from speculator_runtime.traffic.report import summarise

from .observe import PROMOTED, Story, VersionView


def read_records(path: Path) -> list[Record]:
    """Records written so far; a last line that is still being written is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [Record.model_validate_json(line) for line in lines if line]


def version_entry(version: VersionView) -> dict[str, Any]:
    """A version as summary.json lists it."""
    speedup = version.speedup
    return {
        "version": version.version,
        "verdict": version.verdict or version.phase,
        "accept_length": version.accept_length,
        "speedup": speedup.estimate if speedup else None,
        "speedup_lower": speedup.lower if speedup else None,
        "speedup_upper": speedup.upper if speedup else None,
        "pairs": speedup.pairs if speedup else 0,
        "training_step": version.training_step,
        "requests_learnt_from": version.requests_total,
        "reason": version.reason,
        "message": version.message,
    }


def summary(
    story: Story,
    records: Sequence[Record],
    seconds: float,
    alpha: float | None,
    settings: dict[str, Any],
    cancelled: int = 0,
) -> dict[str, Any]:
    """The run in figures. `promoted` is the version whose lower bound is above the bar, or null with `why_not`."""
    span = max((r.started + r.seconds for r in records), default=0.0) - _start(records)
    traffic = summarise(records, span, cancelled)
    winner = story.winner
    since = None if winner is None else _after(records, story, winner)
    return {
        "seconds": round(seconds, 1),
        "requests": traffic.overall.requests,
        "failed_requests": traffic.overall.failed_requests,
        "versions": [version_entry(v) for v in story.latest.versions] if story.latest else [],
        "promoted": winner.version if winner else None,
        "promoted_after_seconds": None if story.promoted_at is None else round(story.promoted_at, 1),
        "alpha": winner.alpha if winner and winner.alpha is not None else alpha,
        "bar": story.bar,
        "why_not": story.why_not(),
        "prompt_lookup_accept_length": traffic.overall.prompt_lookup_accept_length,
        "after_promotion": since,
        "traffic": traffic.model_dump(mode="json"),
        "settings": settings,
    }


def _start(records: Sequence[Record]) -> float:
    return min((r.started for r in records), default=0.0)


def _after(records: Sequence[Record], story: Story, winner: VersionView) -> dict[str, Any] | None:
    """Figures of requests that began after the promotion, beside those before the first version existed."""
    origin = story.origin
    if story.promoted_at is None:
        return None
    before_first = min((r.at for r in story.readings if r.versions), default=0.0)
    spans = {
        "before_first_version": [r for r in records if r.started + r.seconds - origin < before_first],
        "after_promotion": [r for r in records if r.started - origin >= story.promoted_at],
    }
    keys = ("requests", "failed_requests", "tokens_per_step", "request_throughput", "tpot_p50", "ttft_p50")
    made: dict[str, Any] = {"version": winner.version}
    for name, members in spans.items():
        overall = summarise(members, 0.0).overall.model_dump(mode="json")
        made[name] = {key: overall[key] for key in keys}
    return made


def write_json(path: Path, value: object) -> None:
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def verdict_of(version: VersionView) -> str:
    """A sign and a word for tables."""
    word = version.verdict or version.phase
    return {PROMOTED: "✓ ", "Rejected": "✗ ", "KeptStable": "= ", "Canary": "… "}.get(word, "") + word
