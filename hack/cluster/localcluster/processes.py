"""Starts, recognises and ends the cluster's programs. A pid counts only together with the time its process started."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .layout import MARKER, RUNTIME, ClusterError, Layout


@dataclass(frozen=True)
class Program:
    """A long-running program of the cluster. `files` are configuration whose change means a restart."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    def digest(self) -> str:
        """Digest of all that the running program was started with."""
        total = hashlib.sha256(repr((self.argv, sorted(self.environment.items()))).encode())
        for path in self.files:
            total.update(path.read_bytes())
        return total.hexdigest()


def start(layout: Layout, program: Program) -> None:
    """Start `program` unless it runs already as it should; one that was started differently is replaced."""
    record = _read_record(program.name)
    digest = program.digest()
    if record and _is_alive(record["pid"], record["started"]):
        if record["digest"] == digest:
            return
        stop([program.name])
    log = layout.logs / f"{program.name}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [str(layout.bin / program.argv[0]), *program.argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
            env=os.environ
            | {
                MARKER: str(layout.cluster),
                "PATH": f"{layout.bin}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}",
            }
            | dict(program.environment),
        )
    record = {"pid": child.pid, "started": _started(child.pid), "digest": digest}
    _record_path(program.name).write_text(json.dumps(record))


def is_running(name: str) -> bool:
    """Whether the process started as `name` still runs; a pid that another process took over does not count."""
    record = _read_record(name)
    return record is not None and _is_alive(record["pid"], record["started"])


def is_running_as(program: Program) -> bool:
    """Whether `program` runs, started just as it would be started now."""
    record = _read_record(program.name)
    return record is not None and record["digest"] == program.digest() and _is_alive(record["pid"], record["started"])


def pid_of(name: str) -> int | None:
    """Process id of the running program `name`."""
    record = _read_record(name)
    return record["pid"] if record and _is_alive(record["pid"], record["started"]) else None


def stop(names: Iterable[str], patience: float = 5.0) -> None:
    """End the programs together: SIGTERM, then SIGKILL for what is left after `patience` seconds."""
    records = {name: record for name in names if (record := _read_record(name))}
    end([(record["pid"], record["started"]) for record in records.values()], patience)
    for name in records:
        _record_path(name).unlink(missing_ok=True)


def end(processes: Iterable[tuple[int, int]], patience: float) -> None:
    """End processes given as (pid, start time): SIGTERM, after `patience` seconds SIGKILL; wait until they are gone."""
    left = [process for process in processes if _is_alive(*process)]
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
        for pid, started in left:
            if _is_alive(pid, started):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            left = [process for process in left if _is_alive(*process)]
            time.sleep(0.02)


def marked(cluster: Path) -> list[tuple[int, int]]:
    """(pid, start time) of all processes that the cluster in this folder started, shims included."""
    mark = f"\0{MARKER}={cluster}\0".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in b"\0" + (folder / "environ").read_bytes() + b"\0":
                pid = int(folder.name)
                if (started := _started(pid)) is not None:
                    found.append((pid, started))
    return found


def processes(pids: Iterable[int]) -> list[tuple[int, int]]:
    """(pid, start time) of those of `pids` that run."""
    return [(pid, started) for pid in pids if (started := _started(pid)) is not None]


def await_ready(
    what: str, check: Callable[[], bool], layout: Layout, needs: Iterable[str], seconds: float = 60.0
) -> None:
    """Poll `check` until it holds.

    Raises ClusterError after `seconds`, or at once when a program in `needs` has ended, with the end of its log.
    """
    deadline = time.monotonic() + seconds
    while not check():
        for name in needs:
            if not is_running(name):
                raise ClusterError(f"{name} ended while waiting for {what}:\n{tail(layout, name)}")
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {name}\n{tail(layout, name)}" for name in needs)
            raise ClusterError(f"{what} was not ready within {seconds:.0f} s (logs in {layout.logs}):\n{logs}")
        time.sleep(0.1)


def tail(layout: Layout, name: str, lines: int = 12) -> str:
    """The last lines of a program's log."""
    log = layout.logs / f"{name}.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.is_file() else "(no log)"


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of process `pid`; None when there is none, or only its zombie."""
    try:
        # The second field, the program's name, may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _is_alive(pid: int, started: int) -> bool:
    return started is not None and _started(pid) == started


def _record_path(name: str) -> Path:
    return RUNTIME / f"{name}.pid"


def _read_record(name: str) -> dict[str, Any] | None:
    """The record of `name`; one that was cut short by a power loss counts as none."""
    try:
        record: dict[str, Any] = json.loads(_record_path(name).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return record
