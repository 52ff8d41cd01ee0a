"""plot.png: accept length, throughput, versions and their verdicts over time; the gate's bounds over pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from speculator_runtime.traffic.records import Record
from speculator_runtime.traffic.report import summarise

from .observe import GateSample, Story

matplotlib.use("Agg")
from matplotlib import pyplot

_COLOURS = {"Promoted": "tab:green", "Rejected": "tab:red", "KeptStable": "tab:orange", "Aborted": "tab:gray"}
_SPAN = 10.0


def draw(path: Path, story: Story, records: Sequence[Record], title: str) -> None:
    """Write the plot; works without any version too."""
    figure, (lengths, speeds, bounds) = pyplot.subplots(3, 1, figsize=(10, 10), height_ratios=(1, 1, 1.2))
    speeds.sharex(lengths)
    figure.suptitle(title)
    good = [r for r in records if not r.error]
    ends = np.array([r.started + r.seconds - story.origin for r in good])
    series(lengths, ends, good, "tokens_per_step", "tokens per decode step\n(target-only: 1)", "tab:blue")
    series(
        speeds, ends, good, "request_throughput", "(T_in + T_out) / t per request\n(tokens per second)", "tab:purple"
    )
    lookup = summarise(good, 0.0).overall.prompt_lookup_accept_length
    if lookup is not None:
        lengths.axhline(lookup, color="gray", linestyle=":", label=f"prompt lookup, no training ({lookup:.2f})")
        lengths.legend(loc="upper left", fontsize=8)
    for axes in (lengths, speeds):
        mark_versions(axes, story)
        axes.set_xlabel("seconds since the demo began")
    interval_plot(bounds, story.gate, story)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def series(axes: Any, ends: Any, records: Sequence[Record], field: str, label: str, colour: str) -> None:
    """One dot a request, and the figure of each ten seconds as a line."""
    axes.set_ylabel(label)
    if not records:
        return
    one = [getattr(summarise([r], 0.0).overall, field) for r in records]
    shown = [(x, y) for x, y in zip(ends, one, strict=True) if y is not None]
    if shown:
        axes.plot(*zip(*shown, strict=True), ".", markersize=3, alpha=0.3, color=colour)
    centres, values = [], []
    for index in range(int(ends.max() // _SPAN) + 1):
        inside = [r for r, end in zip(records, ends, strict=True) if index * _SPAN <= end < (index + 1) * _SPAN]
        value = getattr(summarise(inside, _SPAN).overall, field)
        if value is not None:
            centres.append((index + 0.5) * _SPAN)
            values.append(value)
    axes.plot(centres, values, "-", color=colour)
    axes.grid(alpha=0.3)


def mark_versions(axes: Any, story: Story) -> None:
    """Shade the trials (every other block target-only); mark where a version appeared and where it was decided."""
    trials: dict[int, list[float]] = {}
    for reading in story.readings:
        if reading.candidate is not None:
            trials.setdefault(reading.candidate, []).append(reading.at)
    for times in trials.values():
        axes.axvspan(min(times), max(times), color="gold", alpha=0.15, linewidth=0)
    seen: set[int] = set()
    decided: set[int] = set()
    top = axes.get_ylim()[1]
    for reading in story.readings:
        for version in reading.versions:
            if version.version not in seen:
                seen.add(version.version)
                axes.axvline(reading.at, color="gray", linestyle=":", linewidth=1)
                axes.text(reading.at, top, f" v{version.version}", fontsize=8, va="top", color="gray")
            if version.verdict and version.version not in decided:
                decided.add(version.version)
                colour = _COLOURS.get(version.verdict, "black")
                axes.axvline(reading.at, color=colour, linewidth=1.2)
                label = f" v{version.version} {version.verdict}"
                axes.text(reading.at, top, label, fontsize=8, va="top", rotation=90, color=colour)


def interval_plot(axes: Any, samples: Sequence[GateSample], story: Story) -> None:
    """Estimate and bounds of each candidate over the pairs of blocks seen."""
    axes.set_xlabel("pairs of blocks (target-only, candidate)")
    axes.set_ylabel("speedup over target-only")
    axes.axhline(1.0, color="gray", linewidth=0.8)
    axes.axhline(story.bar, color="tab:green", linestyle="--", linewidth=0.8, label=f"bar {story.bar}")
    for index, version in enumerate(sorted({s.version for s in samples})):
        mine = [s.speedup for s in samples if s.version == version]
        colour = f"C{index}"
        pairs = [e.pairs for e in mine]
        axes.plot(pairs, [e.estimate for e in mine], ".-", color=colour, label=f"version {version}")
        for span, alpha in ((mine, 0.08), ([e for e in mine if e.pairs >= story.burn_in], 0.25)):
            bounds = [(e.pairs, e.lower, e.upper) for e in span if e.upper is not None]
            if bounds:
                axes.fill_between(*zip(*bounds, strict=True), color=colour, alpha=alpha)
    axes.axvline(story.burn_in, color="gray", linestyle=":", linewidth=1)
    axes.annotate(
        "the gate looks from here on",
        (story.burn_in, 0.03),
        xycoords=axes.get_xaxis_transform(),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color="gray",
    )
    axes.set_xlim(1, max([story.burn_in, *(s.speedup.pairs for s in samples)]) + 1)
    shown = [bound for s in samples if s.speedup.pairs >= 4 for bound in (s.speedup.lower, s.speedup.upper or 1.0)]
    if shown:  # the first bounds are too wide to be worth the room
        axes.set_ylim(min(0.9, *shown), max(1.2, *shown))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=8)
