"""How a run looks: a live picture on a terminal, one line per piece of news elsewhere."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from speculator_runtime.traffic.records import Record
from speculator_runtime.traffic.report import summarise

from .observe import Estimate, Reading, Story
from .outputs import verdict_of

_PLAIN_SECONDS = 20.0
_WINDOW_SECONDS = 20.0
_BARS = "▁▂▃▄▅▆▇█"


class View:
    """Use as a context manager; `show` after every reading."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=2, transient=False) if console.is_terminal else None
        self._last_line = 0.0

    def __enter__(self) -> "View":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, story: Story, records: Sequence[Record], news: Sequence[str]) -> None:
        """Draw the newest state."""
        reading = story.latest
        if reading is None:
            return
        if self._live:
            self._live.update(picture(story, records))
            return
        for line in news:
            self._console.print(f"[{reading.at:4.0f} s] {line}", markup=False, highlight=False, soft_wrap=True)
        if time.monotonic() - self._last_line >= _PLAIN_SECONDS:
            self._last_line = time.monotonic()
            line = f"[{reading.at:4.0f} s] {status_line(story)}; {traffic_line(story, records)}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def status_line(story: Story) -> str:
    """Phase and what serves."""
    reading = story.latest
    assert reading is not None
    parts = [reading.phase]
    if reading.candidate is not None:
        parts.append(f"version {reading.candidate} on trial{trial(story)}")
    parts.append(f"stable {'none' if reading.stable is None else reading.stable}")
    trainer = reading.trainer
    if trainer:
        parts.append(
            f"training step {trainer.get('step', 0)}, {trainer.get('requestsReceived', 0)} requests learnt from"
        )
    return ", ".join(parts)


def trial(story: Story) -> str:
    """The trial so far: figures of the gate, or of the evidence while the gate does not look yet."""
    reading, so_far = story.latest, story.trial
    if reading is not None and reading.speedup is not None:
        return interval(reading.speedup)
    if so_far is None:
        return ""
    return f" {so_far.estimate:.2f} ({so_far.pairs} pairs, no verdict before {story.burn_in})"


def interval(speedup: Estimate | None) -> str:
    """` 1.31 (1.12..1.53, 14 pairs)`; empty without one."""
    if speedup is None:
        return ""
    upper = "" if speedup.upper is None else f"{speedup.upper:.2f}"
    return f" {speedup.estimate:.2f} ({speedup.lower:.2f}..{upper}, {speedup.pairs} pairs)"


def traffic_line(story: Story, records: Sequence[Record]) -> str:
    """Requests so far, and figures of the last seconds."""
    now = time.time()
    recent = [r for r in records if now - (r.started + r.seconds) <= _WINDOW_SECONDS]
    failed = sum(bool(r.error) for r in records)
    overall = summarise(recent, _WINDOW_SECONDS)
    text = f"{len(records)} requests, {failed} failed"
    if overall.overall.accept_length:
        text += f", accept length {overall.overall.accept_length:.2f}"
    if overall.output_tokens_per_second:
        text += f", {overall.output_tokens_per_second:.0f} tok/s"
    return text


def picture(story: Story, records: Sequence[Record]) -> RenderableType:
    """The live picture: what happens, the versions, the traffic."""
    reading = story.latest
    assert reading is not None
    header = Text.assemble(
        (f"{reading.at:5.0f} s  ", "dim"), (reading.phase, "bold cyan"), ("  " + reading.message, "")
    )
    header.no_wrap, header.overflow = True, "ellipsis"
    rows: list[RenderableType] = [header, Text(status_line(story), style="dim"), versions_table(story, reading)]
    rows.append(Text("traffic  " + traffic_line(story, records)))
    rows.append(Text("tokens per decode step over time  ") + sparkline(records, story.origin))
    rows += [
        Text(f"{at:5.0f} s  {line}", style="dim", no_wrap=True, overflow="ellipsis") for at, line in story.news[-5:]
    ]
    return Group(*rows)


def versions_table(story: Story, reading: Reading) -> Table:
    """One row a version."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("version", "state", "learnt from", "step", "accept length", "speedup over target-only", "pairs"):
        table.add_column(column, justify="left" if column == "state" else "right")
    for version in reading.versions[-6:]:
        on_trial = version.version == reading.candidate
        speedup = (reading.speedup or story.trial) if on_trial and version.speedup is None else version.speedup
        bounds = "-"
        if speedup and speedup.pairs < story.burn_in:
            bounds = f"{speedup.estimate:.2f}  (no bounds yet)"
        elif speedup:
            upper = "" if speedup.upper is None else f"{speedup.upper:.2f}"
            bounds = f"{speedup.estimate:.2f}  [{speedup.lower:.2f}, {upper}]"
        state = verdict_of(version)
        colour = {"✓": "green", "✗": "red", "…": "yellow"}.get(state[0], "")
        table.add_row(
            str(version.version),
            Text(state, style=colour),
            f"{version.requests_total} requests",
            str(version.training_step),
            "-" if version.accept_length is None else f"{version.accept_length:.2f}",
            Text(bounds),
            str(speedup.pairs) if speedup else "-",
        )
    return table


def sparkline(records: Sequence[Record], origin: float, width: int = 60, span: float = 10.0) -> Text:
    """Tokens per decode step in spans of ten seconds, drawn between 1 and the largest."""
    spans: dict[int, list[Record]] = {}
    for record in records:
        spans.setdefault(int((record.started + record.seconds - origin) / span), []).append(record)
    if not spans:
        return Text("-")
    lengths = [summarise(spans.get(i, []), span).overall.tokens_per_step for i in range(min(spans), max(spans) + 1)][
        -width:
    ]
    top = max((length for length in lengths if length), default=1.0)
    bars = ""
    for length in lengths:
        share = 0.0 if not length or top <= 1 else (length - 1) / (top - 1)
        bars += " " if length is None else _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
    return Text(f"1.00 {bars} {top:.2f}")
