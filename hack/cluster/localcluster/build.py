"""Builds the cluster's programs from the Go modules pinned under `tools/`, each only when its pins changed.

A module's stamp is the digest of what decides its binaries: go.mod, go.sum, sources of ours, link flags.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .layout import ClusterError, Layout
from .progress import step

_KUBERNETES = "k8s.io/kubernetes"


@dataclass(frozen=True)
class Module:
    """A folder of `tools/`: its binaries, and the Go package whose version names it."""

    name: str
    package: str
    # File name in `bin` -> name that `go build` gives it, where they differ.
    binaries: tuple[str, ...]
    built_as: str = ""


MODULES = (
    Module("pause", "", ("pause",)),
    Module("etcd", "go.etcd.io/etcd/server/v3", ("etcd",), built_as="server"),
    Module("versitygw", "github.com/versity/versitygw", ("versitygw",)),
    Module(
        "k8s",
        _KUBERNETES,
        (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-proxy",
            "kube-scheduler",
            "kubeadm",
            "kubectl",
            "kubelet",
        ),
    ),
    Module("containerd", "github.com/containerd/containerd/v2", ("containerd", "containerd-shim-runc-v2", "ctr")),
    Module("buildkit", "github.com/moby/buildkit", ("buildctl", "buildkitd")),
    Module("helm", "helm.sh/helm/v3", ("helm",)),
    Module("coredns", "github.com/coredns/coredns", ("coredns",)),
)


def build(layout: Layout, only: Iterable[str] = ()) -> None:
    """Bring the binaries of all modules (or of `only`) up to date.

    Raises ClusterError when a build fails, with the end of the compiler's output.
    """
    wanted = set(only) or {module.name for module in MODULES}
    if unknown := wanted - {module.name for module in MODULES}:
        raise ClusterError(f"no such module: {', '.join(sorted(unknown))}; there are {[m.name for m in MODULES]}")
    layout.bin.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        if module.name in wanted and not is_current(layout, module):
            version = version_of(layout, module)
            with step(f"build {module.name} {version}".rstrip()):
                _build(layout, module, version)


def outdated(layout: Layout) -> list[str]:
    """Names of the modules whose binaries are missing or of other pins."""
    return [module.name for module in MODULES if not is_current(layout, module)]


def is_current(layout: Layout, module: Module) -> bool:
    """Whether the module's binaries are there and were built from today's pins."""
    stamp = _stamp(layout, module)
    return (
        stamp.is_file()
        and stamp.read_text() == digest(layout, module)
        and all((layout.bin / name).is_file() for name in module.binaries)
    )


def digest(layout: Layout, module: Module) -> str:
    """Digest of everything that decides the module's binaries, but for the compiler."""
    total = hashlib.sha256(repr((module, _link_flags(module, version_of(layout, module)))).encode())
    for path in sorted((layout.tools / module.name).iterdir()):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def version_of(layout: Layout, module: Module) -> str:
    """The pinned version of the module's main package, as go.mod writes it; empty for our own sources."""
    for line in (layout.tools / module.name / "go.mod").read_text().splitlines():
        words = line.removeprefix("require ").split()
        if module.package and len(words) >= 2 and words[0] == module.package and words[1].startswith("v"):
            return words[1]
    return ""


def _build(layout: Layout, module: Module, version: str) -> None:
    scratch = layout.bin / f".build-{module.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        package = "tool" if module.package else "."
        # -mod=readonly: what go.sum holds is what is built. The caller's own flags do not reach the build.
        environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"}
        command = ["go", "build", "-o", f"{scratch}/", "-ldflags", _link_flags(module, version), package]
        done = subprocess.run(command, cwd=layout.tools / module.name, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise ClusterError(f"building {module.name} failed ({' '.join(command)}):\n{done.stderr[-3000:]}")
        for name in module.binaries:
            # Renamed into place, so that a program of the old version may go on running.
            (scratch / (module.built_as or name)).rename(layout.bin / name)
        stamp = _stamp(layout, module)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest(layout, module))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _link_flags(module: Module, version: str) -> str:
    flags = ["-s", "-w"]
    if module.package == _KUBERNETES:
        major, minor, _ = version.removeprefix("v").split(".")
        values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
        flags += [f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items()]
    return " ".join(flags)


def _stamp(layout: Layout, module: Module) -> Path:
    return layout.bin / ".stamps" / module.name
