"""Run programs for the demo: output into a log file, a clear error with the log's tail when one fails."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class DemoError(Exception):
    """The demo cannot go on; the message says what failed and what to do."""


_TAIL_LINES = 15


def run(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, stdin: str | None = None) -> None:
    """Run to the end with output appended to `log`; raises DemoError with the end of its output."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        begin = file.tell()
        try:
            done = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                input=stdin,
                text=True,
            )
        except FileNotFoundError as error:
            raise DemoError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[begin:].splitlines()[-_TAIL_LINES:]
        raise DemoError(f"{' '.join(command)} ended with {done.returncode}:\n  " + "\n  ".join(tail) + f"\nsee {log}")


def show(command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Run with output on this terminal; raises DemoError when it fails."""
    try:
        done = subprocess.run(command, env={**os.environ, **(env or {})})
    except FileNotFoundError as error:
        raise DemoError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        raise DemoError(f"{' '.join(command)} ended with {done.returncode}; its message is above")


def output(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Standard output of a command; raises DemoError with its standard error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    except FileNotFoundError as error:
        raise DemoError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        raise DemoError(
            f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-1500:]}"
        )
    return done.stdout
