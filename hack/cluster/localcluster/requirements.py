"""What the machine must have before anything starts: installed where possible, else asked for in one message."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from .build import outdated
from .layout import ClusterError, Layout
from .progress import note, step

GO_AT_LEAST = (1, 26)
_ROOT = "root: containers, network interfaces and mounts need it; run this with sudo"
# Debian package -> a program or file that shows it is there.
_PACKAGES = {
    "runc": "runc",
    "containernetworking-plugins": "ptp",
    "nftables": "nft",
    "iproute2": "ip",
    "debootstrap": "debootstrap",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "mount": "umount",
}


def ensure(layout: Layout, packages: bool = True) -> None:
    """Install what is missing where we may.

    Raises ClusterError with everything that is missing at once. `packages=False` asks only for what building needs.
    """
    lacking = []
    if os.geteuid() != 0:
        lacking.append(_ROOT)
    if packages and (missing := _missing_packages()):
        if os.geteuid() == 0 and shutil.which("apt-get"):
            with step(f"install {', '.join(missing)}"):
                _install(missing)
            missing = _missing_packages()
        if missing:
            lacking.append(f"Debian's packages (or their like): {' '.join(missing)}")
    if packages and "overlay" not in Path("/proc/filesystems").read_text():
        subprocess.run(["modprobe", "overlay"], capture_output=True)
        if "overlay" not in Path("/proc/filesystems").read_text():
            lacking.append("the kernel's overlay file system: modprobe overlay")
    if (stale := outdated(layout)) and (problem := _go_problem()):
        lacking.append(f"Go {GO_AT_LEAST[0]}.{GO_AT_LEAST[1]} or newer, to build {', '.join(stale)}: {problem}")
    if lacking:
        raise ClusterError("This machine lacks:\n" + "\n".join(f"  - {item}" for item in lacking))


def ensure_root() -> None:
    """Raises ClusterError for anybody but root."""
    if os.geteuid() != 0:
        raise ClusterError(f"this needs {_ROOT}")


def cni_plugins() -> Path | None:
    """Folder of the CNI plugins: CNI_BIN, or where Debian or others put them."""
    folders = [os.environ.get("CNI_BIN", ""), "/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"]
    return next((Path(folder) for folder in folders if folder and Path(folder, "ptp").is_file()), None)


def _missing_packages() -> list[str]:
    def present(sign: str) -> bool:
        if sign == "ptp":
            return cni_plugins() is not None
        return Path(sign).is_file() if sign.startswith("/") else shutil.which(sign) is not None

    return [package for package, sign in _PACKAGES.items() if not present(sign)]


def _install(packages: list[str]) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-qy", "--no-install-recommends", *packages]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            note(f"{' '.join(command)} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
            return


def _go_problem() -> str:
    """Why the Go that is here will not do; empty when it will."""
    if not shutil.which("go"):
        return "there is no go on the PATH"
    version = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True).stdout.strip()
    found = re.match(r"go(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < GO_AT_LEAST:
        return f"the one on the PATH is {version}"
    return ""
