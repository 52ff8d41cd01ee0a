"""Builds the project's images with BuildKit, straight into containerd's store: nothing is pushed, saved or loaded.

An image's tag holds the digest of its sources, so a pod that names it runs exactly that code, `IfNotPresent` is right,
and an image that is there already is not built again. `cluster images` prints the names; whoever makes pods uses those.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import lifecycle, packageindex, processes, programs, requirements
from .layout import ClusterError, Layout
from .progress import step

REPOSITORY = "localhost/speculator"
IMAGES = ("operator", "runtime")
_TAG = re.compile(rf"{REPOSITORY}/(?:{'|'.join(IMAGES)}):dev-[0-9a-f]{{12}}")


def build_all(layout: Layout, names: Iterable[str] = IMAGES) -> dict[str, str]:
    """Build those of the project's images whose sources changed.

    Returns image name to full reference of every image built so far, and leaves the same in the layout's `images` file.
    Raises ClusterError when the cluster is not up or a build fails.
    """
    if not (processes.is_running("containerd") and processes.is_running("kube-apiserver")):
        raise ClusterError("images are built into the cluster's own store, and it is not up: run `cluster up` first")
    references = {}
    with lifecycle.locked(layout, "images-lock"):
        base = os.environ.get("BASE") or _base_image(layout)
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                # Built from a copy: whoever edits files meanwhile gets neither a mixture nor a tag that lies.
                copy = Path(folder)
                copy_sources(layout.repo, name, copy)
                reference = f"{REPOSITORY}/{name}:dev-{source_digest(copy, base)}"
                if reference not in lifecycle.image_names(layout):
                    with step(f"image {reference}"):
                        build(layout, [reference], copy / "images" / name / "Dockerfile", copy, {"BASE": base})
            lifecycle.ctr(layout, "images", "tag", "--force", reference, f"{REPOSITORY}/{name}:dev")
            references[name] = reference
        built = json.loads(layout.images.read_text()) if layout.images.is_file() else {}
        built |= references
        layout.images.write_text(json.dumps(built, indent=2) + "\n")
        _forget_old(layout, set(built.values()))
    return built


def build(layout: Layout, references: list[str], dockerfile: Path, context: Path, arguments: Mapping[str, str]) -> None:
    """Build one Dockerfile. Raises ClusterError with the end of the build's output."""
    _start_buildkit(layout)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(layout.bin / "buildctl"), "--addr", f"unix://{layout.buildkitd}", "build", "--progress=plain"),
            *(
                "--frontend",
                "dockerfile.v0",
                "--local",
                f"context={context}",
                "--local",
                f"dockerfile={dockerfile.parent}",
            ),
            *("--opt", f"filename={dockerfile.name}", "--opt", "image-resolve-mode=local"),
            # Builds share the machine's network: it may reach package indexes by a proxy on a loopback address.
            *("--opt", "force-network-mode=host", "--allow", "network.host"),
            *(word for key, value in arguments.items() for word in ("--opt", f"build-arg:{key}={value}")),
            *packageindex.secret_options(os.environ, Path.home(), Path(folder)),
            *("--output", f'type=image,"name={",".join(references)}",unpack=true,compression=zstd,compression-level=1'),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        (layout.logs / f"image-{references[0].split('/')[-1].split(':')[0]}.log").write_text(done.stderr)
    if done.returncode != 0:
        raise ClusterError(f"building {references[0]} failed:\n{done.stderr[-4000:]}")


def copy_sources(repo: Path, name: str, target: Path) -> None:
    """Copy everything that goes into the image `name` to `target`, which is then a build context."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("operator", "runtime", "images/lib", f"images/{name}"):
        shutil.copytree(repo / folder, target / folder, ignore=ignore)
    (target / "requirements").mkdir()
    for file in ("pyproject.toml", "requirements/build.txt", f"requirements/{name}.txt"):
        shutil.copy2(repo / file, target / file)


def source_digest(sources: Path, base: str) -> str:
    """12 hexadecimal digits that change with any file's name, content or executable bit, and with the base image."""
    total = hashlib.sha256(base.encode())
    for path in sorted(path for path in sources.rglob("*") if path.is_file()):
        mode = b"x" if os.access(path, os.X_OK) else b"-"
        total.update(f"{path.relative_to(sources)}\0".encode() + mode + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]


def _base_image(layout: Layout) -> str:
    """The base made on this machine, for want of a registry; its root file system is kept in the cache."""
    recipe = layout.repo / "images" / "base" / "make-rootfs"
    digest = hashlib.sha256(recipe.read_bytes()).hexdigest()[:12]
    reference = f"{REPOSITORY}/base:{digest}"
    if reference not in lifecycle.image_names(layout):
        rootfs = layout.cache / f"base-{digest}.tar"
        if not rootfs.is_file():
            with step("base image's root file system"):
                partial = rootfs.with_suffix(".partial")
                done = subprocess.run([recipe, partial, *_debian_mirror()], capture_output=True, text=True)
                if done.returncode != 0:
                    raise ClusterError(f"debootstrap failed:\n{done.stderr[-2000:]}")
                partial.rename(rootfs)
        with step(f"image {reference}"):
            path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            lifecycle.import_image(
                layout, reference, rootfs.read_bytes(), {"Env": [f"PATH={path}"], "Cmd": ["python3"]}
            )
    return reference


def _debian_mirror() -> list[str]:
    """The mirror of Debian 12 that this machine's apt uses; none where it uses another release."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return [row[0] for row in rows if row[1:] == ["bookworm", "main"]][:1]


def _start_buildkit(layout: Layout) -> None:
    plugins = requirements.cni_plugins()
    assert plugins is not None, "the cluster is up"
    processes.start(layout, programs.buildkitd(layout))

    def answers() -> bool:
        command = [str(layout.bin / "buildctl"), "--addr", f"unix://{layout.buildkitd}", "debug", "workers"]
        return subprocess.run(command, capture_output=True).returncode == 0

    processes.await_ready("BuildKit", answers, layout, ["buildkitd"])


def _forget_old(layout: Layout, current: set[str]) -> None:
    """Remove tags that nothing in the cluster names; containerd then frees layers that nothing else holds.

    Coming back to older sources costs seconds all the same: BuildKit has their layers as long as there is room.
    """
    # Also what is not running now: templates of workloads, and what Speculators tell the operator to run.
    kinds = "pods,deployments,statefulsets,jobs,configmaps"
    named = set(_TAG.findall(lifecycle.kubectl(layout, "get", kinds, "-A", "-o", "json")))
    named |= set(_TAG.findall(lifecycle.kubectl(layout, "get", "speculators", "-A", "-o", "json", check=False)))
    # Reference and digest of every image; the kubelet's side adds a second reference `sha256:...` to each.
    rows = [line.split() for line in lifecycle.ctr(layout, "images", "ls").splitlines()[1:]]
    digest = {row[0]: row[2] for row in rows}
    for reference in [reference for reference in digest if _TAG.fullmatch(reference)]:
        if reference not in named | current:
            lifecycle.ctr(layout, "images", "rm", reference)
            del digest[reference]
    held = {value for reference, value in digest.items() if not reference.startswith("sha256:")}
    for reference, value in digest.items():
        if value not in held:
            lifecycle.ctr(layout, "images", "rm", reference)
