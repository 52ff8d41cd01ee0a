"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .records import Record
from .report import accept_length

_PLAIN_LINE_SECONDS = 10.0
_RECENT = 50


class RunProgress:
    """Shows finished requests. Use as a context manager."""

    def __init__(self, console: Console, total: int | None) -> None:
        self._console = console
        self._total = total
        self._recent: list[Record] = []
        self._count = self._failed = 0
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[figures]}"),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("requests", total=total, figures="")

    def __enter__(self) -> "RunProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def add(self, record: Record) -> None:
        """Take a finished request in."""
        self._count += 1
        self._failed += bool(record.error)
        self._recent = [*self._recent[-_RECENT + 1 :], record]
        length = accept_length([r for r in self._recent if not r.error])
        figures = f"{self._failed} failed" + (f", accept length {length:.2f}" if length else "")
        if self._bar:
            self._bar.update(self._task, completed=self._count, figures=figures)
        elif time.monotonic() - self._last_line >= _PLAIN_LINE_SECONDS:
            self._last_line = time.monotonic()
            of = f" of {self._total}" if self._total else ""
            self._console.print(f"{self._count}{of} requests, {figures}", highlight=False, soft_wrap=True)
