"""How things look on a terminal or in a file: signs, columns, ages, figures. Pure, but for `Screen`.

A sign or colour never says anything that a word beside it does not.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import yaml
from rich.console import Console, Group
from rich.text import Text

from speculator_operator.cli.options import Format

NONE = "-"
STYLES = {
    "Stable": "green",
    "Promoted": "green",
    "Ready": "green",
    "Done": "green",
    "Canary": "cyan",
    "Validating": "cyan",
    "Starting": "cyan",
    "Learning": "cyan",
    "Fallback": "yellow",
    "Paused": "yellow",
    "TargetOnly": "yellow",
    "Pending": "yellow",
    "Expired": "yellow",
    "Aborted": "yellow",
    "Degraded": "red",
    "Rejected": "red",
    "Refused": "red",
    "NotReady": "yellow",
}
SIGNS = {"green": ("✔", "+"), "cyan": ("◌", "~"), "yellow": ("!", "!"), "red": ("✖", "x")}
BRANCHES = {True: ("├─ ", "└─ "), False: ("|- ", "`- ")}
MARGIN = 3


class Screen:
    """Where a command prints. Lines are never wrapped in a file or pipe."""

    def __init__(self, no_color: bool = False) -> None:
        self.console = Console(no_color=no_color or None, highlight=False, markup=False, emoji=False)
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        self.unicode = encoding.startswith("utf")

    @property
    def terminal(self) -> bool:
        """Whether a person looks on."""
        return self.console.is_terminal

    def lines(self, lines: Iterable[Text | str]) -> None:
        """Print lines as they are."""
        for line in lines:
            self.console.print(line, soft_wrap=True)

    def frame(self, lines: Iterable[Text]) -> Group:
        """Lines for a live display: one row each, cut at the terminal's edge."""
        kept = []
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
            kept.append(line)
        return Group(*kept)

    def data(self, value: Any, output: Format) -> None:
        """Print for programs."""
        if output is Format.JSON:
            sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")
        else:
            sys.stdout.write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120))


def phase(word: str, unicode: bool = True) -> Text:
    """A phase or verdict with its sign."""
    style = STYLES.get(word, "")
    signs = SIGNS.get(style)
    return Text(f"{signs[0 if unicode else 1]} {word}" if signs else word or NONE, style=style)


def columns(header: Sequence[str], rows: Iterable[Sequence[Text | str]]) -> list[Text]:
    """Left-aligned columns, as kubectl prints them."""
    table = [[Text(cell) for cell in header], *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(row[index].cell_len for row in table) for index in range(len(header))]
    lines = []
    for row in table:
        line = Text()
        for cell, width in zip(row, widths, strict=True):
            line.append_text(cell)
            line.append(" " * (width - cell.cell_len + MARGIN))
        line.rstrip()
        lines.append(line)
    return lines


def _cell(cell: Text | str) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(cell or NONE)


def pairs(entries: Iterable[tuple[str, Text | str]]) -> list[Text]:
    """`Name:   value` lines, values in one column; those without a value are left out."""
    kept = [(name, value) for name, value in entries if value]
    width = max((len(name) for name, _ in kept), default=0) + 1 + MARGIN
    return [Text(f"{name}:".ljust(width)).append_text(_cell(value)) for name, value in kept]


def speedup(value: Mapping[str, Any] | None) -> str:
    """`1.182 [1.121, 1.246]`; the upper bound may be missing."""
    if not value:
        return NONE
    upper = f"{float(value['upper']):.3f}" if value.get("upper") is not None else "∞"
    return f"{float(value['estimate']):.3f} [{float(value['lower']):.3f}, {upper}]"


def moment(text: str | datetime | None) -> datetime | None:
    """A time of the API."""
    if text is None or isinstance(text, datetime):
        return text
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def age(since: str | datetime | None, now: datetime) -> str:
    """`45s`, `12m`, `5h`, `3d`, as kubectl prints it."""
    start = moment(since)
    if start is None:
        return NONE
    seconds = max(0, int((now - start).total_seconds()))
    for unit, size, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < until:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def short(digest: str) -> str:
    """The beginning of a sha256."""
    return digest[:12] or NONE
