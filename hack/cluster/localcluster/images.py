"""Builds the project's images with BuildKit, straight into containerd's store: nothing is pushed, saved or loaded.

An image's tag holds the digest of its sources, so a pod that names it runs exactly that code, `IfNotPresent` is right,
and an image that is there already is not built again. `cluster images` prints the names; whoever makes pods uses those.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from . import lifecycle, packageindex, processes, programs, requirements
from .layout import ClusterError, Layout
from .progress import step

REPOSITORY = "localhost/speculator"
IMAGES = ("operator", "runtime")
# Tags of one image that stay besides those that pods use: the newest, and the one before it.
_KEEP = 2


def build_all(layout: Layout, names: Iterable[str] = IMAGES) -> dict[str, str]:
    """Build those of the project's images whose sources changed.

    Returns image name to full reference of every image built so far, and leaves the same in the layout's `images` file.
    Raises ClusterError when the cluster is not up or a build fails.
    """
    if not lifecycle.is_up(layout):
        raise ClusterError("images are built into the cluster's own store, and it is not up: run `cluster up` first")
    references = {}
    with lifecycle.locked(layout, "images-lock"):
        base = os.environ.get("BASE") or _base_image(layout)
        for name in names:
            reference = f"{REPOSITORY}/{name}:dev-{source_digest(layout.repo, name, base)}"
            if reference not in lifecycle.image_names(layout):
                with step(f"image {reference}"):
                    build(layout, [reference], layout.repo / "images" / name / "Dockerfile", layout.repo, {"BASE": base})
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
    home = Path.home()
    pip_files = packageindex.pip_files(os.environ, home)
    settings = packageindex.variables(os.environ, pip_files, packageindex.uv_files(os.environ, home))
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder, "index")
        index.write_text(packageindex.shell(settings))
        secrets = [f"--secret=id=index,src={index}"]
        if bundle := packageindex.ca_bundle(os.environ, pip_files):
            secrets.append(f"--secret=id=ca,src={bundle}")
        command = [
            *(str(layout.bin / "buildctl"), "--addr", f"unix://{layout.buildkitd}", "build", "--progress=plain"),
            *("--frontend", "dockerfile.v0", "--local", f"context={context}", "--local", f"dockerfile={dockerfile.parent}"),
            *("--opt", f"filename={dockerfile.name}", "--opt", "image-resolve-mode=local"),
            # Builds share the machine's network: it may reach package indexes by a proxy on a loopback address.
            *("--opt", "force-network-mode=host", "--allow", "network.host"),
            *(word for key, value in arguments.items() for word in ("--opt", f"build-arg:{key}={value}")),
            *secrets,
            *("--output", f'type=image,"name={",".join(references)}",unpack=true,compression=zstd,compression-level=1'),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        (layout.logs / f"image-{references[0].split('/')[-1].split(':')[0]}.log").write_text(done.stderr)
    if done.returncode != 0:
        raise ClusterError(f"building {references[0]} failed:\n{done.stderr[-4000:]}")


def source_digest(repo: Path, name: str, base: str) -> str:
    """12 hexadecimal digits that change with anything that goes into the image `name`."""
    total = hashlib.sha256(base.encode())
    for path in _sources(repo, name):
        mode = b"x" if os.access(path, os.X_OK) else b"-"
        total.update(f"{path.relative_to(repo)}\0".encode() + mode + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]


def _sources(repo: Path, name: str) -> Iterator[Path]:
    files = ("pyproject.toml", "requirements/build.txt", f"requirements/{name}.txt", "images/lib/with-index")
    yield from (repo / file for file in files)
    for folder in ("operator", "runtime", f"images/{name}"):
        for path in sorted((repo / folder).rglob("*")):
            hidden = any(part == "__pycache__" or part.endswith(".egg-info") for part in path.parts)
            if path.is_file() and not hidden:
                yield path


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
            lifecycle.import_image(layout, reference, rootfs.read_bytes(), {"Env": [f"PATH={path}"], "Cmd": ["python3"]})
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
    """Remove tags that neither pods nor the next run will want; containerd then frees layers that nothing else holds."""
    listing = json.loads(lifecycle.kubectl(layout, "get", "pods", "-A", "-o", "json"))
    used = {
        container["image"]
        for pod in listing["items"]
        for kind in ("containers", "initContainers")
        for container in pod["spec"].get(kind, [])
    }
    # Reference and digest of every image; the kubelet's side adds a second reference `sha256:...` to each.
    rows = [line.split() for line in lifecycle.ctr(layout, "images", "ls").splitlines()[1:]]
    digest = {row[0]: row[2] for row in rows}
    for name in IMAGES:
        tags = [tag for tag in digest if tag.startswith(f"{REPOSITORY}/{name}:dev-")]
        spare = [tag for tag in tags if tag not in used | current]
        for tag in spare[: max(0, len(tags) - _KEEP)]:
            lifecycle.ctr(layout, "images", "rm", tag)
            del digest[tag]
    named = {value for reference, value in digest.items() if not reference.startswith("sha256:")}
    for reference, value in digest.items():
        if value not in named:
            lifecycle.ctr(layout, "images", "rm", reference)
