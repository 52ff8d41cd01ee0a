"""Finds and removes what is left when a cluster's programs are gone: containers, mounts, cgroups, network."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import network, processes
from .layout import RUNTIME, Layout

_CGROUPS = Path("/sys/fs/cgroup")
# How long containers get between SIGTERM and SIGKILL when the whole cluster goes down, seconds.
_PATIENCE = 3.0


def leftovers(layout: Layout) -> list[str]:
    """What of the cluster is still on this machine, files apart, one line each. Empty after `down`."""
    running = processes.marked(layout.cluster) + processes.processes(_pids_in_cgroups(layout))
    found = [f"process {pid} ({_command(pid)})" for pid, _ in running]
    found += [f"mount {path}" for path in _mounts(layout)]
    found += [f"cgroup {path}" for path in _cgroup_roots(layout)]
    return found + network.leftovers()


def make_cgroups(layout: Layout) -> None:
    """The cgroup under which the kubelet and BuildKit put containers, so that `down` finds each of them."""
    if (_CGROUPS / "cgroup.controllers").exists():
        # Version 2: a child has only the controllers that its parent hands down; the kubelet insists on all.
        for controller in (_CGROUPS / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):
                (_CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
        (_CGROUPS / layout.cgroup).mkdir(exist_ok=True)
        return
    for hierarchy in _hierarchies():
        folder = hierarchy / layout.cgroup
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # A new cpuset is empty, and nothing can run in it.
            if (folder / name).exists() and not (folder / name).read_text().strip():
                (folder / name).write_text((hierarchy / name).read_text())


def end_containers(layout: Layout) -> None:
    """End every process in the cluster's cgroups."""
    processes.end(processes.processes(_pids_in_cgroups(layout)), _PATIENCE)


def remove(layout: Layout) -> None:
    """Remove all leftovers. The cluster's own programs must have been stopped. Idempotent."""
    processes.end(processes.marked(layout.cluster), 1.0)
    end_containers(layout)
    if mounts := _mounts(layout):
        # Lazily, deepest first: a mount that something foreign still looks at goes when that ends. What cannot be
        # unmounted shows in `leftovers`.
        subprocess.run(["umount", "--lazy", *mounts], capture_output=True)
    network.tear_down()
    for root in _cgroup_roots(layout):
        for folder, _, _ in os.walk(root, topdown=False):
            Path(folder).rmdir()
    shutil.rmtree(RUNTIME, ignore_errors=True)


def _mounts(layout: Layout) -> list[str]:
    """Mount points below the cluster's folders, deepest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    ours = (f"{RUNTIME}/", f"{layout.cluster}/")
    return [point for point in reversed(points) if point.startswith(ours)]


def _hierarchies() -> Iterator[Path]:
    """The mounted cgroup v1 hierarchies."""
    return (path for path in sorted(_CGROUPS.iterdir()) if path.is_dir() and not (path / "cgroup.controllers").exists())


def _cgroup_roots(layout: Layout) -> list[Path]:
    candidates = [
        _CGROUPS / layout.cgroup,
        *(path / layout.cgroup for path in sorted(_CGROUPS.iterdir()) if not path.is_symlink()),
    ]
    return [path for path in candidates if path.is_dir()]


def _pids_in_cgroups(layout: Layout) -> set[int]:
    files = [file for root in _cgroup_roots(layout) for file in root.rglob("cgroup.procs")]
    return {int(line) for file in files if file.exists() for line in file.read_text().split()}


def _command(pid: int) -> str:
    path = Path(f"/proc/{pid}/comm")
    return path.read_text().strip() if path.exists() else "ended"
