"""CLUSTER=existing: images for somebody's own cluster, built by Docker and pushed to IMAGE_REGISTRY."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import packageindex
from .layout import ClusterError
from .progress import step


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user's own cluster is wanted, not the local one. Raises ClusterError for an unknown CLUSTER."""
    cluster = environment.get("CLUSTER", "local")
    if cluster not in ("local", "existing"):
        raise ClusterError(
            f"CLUSTER={cluster}: use local (made on this machine) or existing (the current kube context)"
        )
    return cluster == "existing"


def references(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Image name to reference in the user's registry. Raises ClusterError when none is named."""
    if not environment.get("IMAGE_REGISTRY"):
        raise ClusterError("CLUSTER=existing needs IMAGE_REGISTRY=REGISTRY/PATH, from which the cluster can pull")
    tag = environment.get("IMAGE_TAG") or "latest"
    return {name: f"{environment['IMAGE_REGISTRY'].rstrip('/')}/speculator-{name}:{tag}" for name in names}


def build_and_push(repo: Path, names: Iterable[str]) -> dict[str, str]:
    """Build and push each image. Returns the references; raises ClusterError with Docker's words."""
    images = references(names, os.environ)
    docker = shutil.which("docker")
    if not docker:
        raise ClusterError(
            "CLUSTER=existing builds images with docker, which is not on the PATH. With another builder: "
            + "; ".join(f"images/{name}/Dockerfile as {reference}" for name, reference in images.items())
        )
    with tempfile.TemporaryDirectory() as folder:
        secrets = packageindex.secret_options(os.environ, Path.home(), Path(folder))
        for name, reference in images.items():
            base = [f"--build-arg=BASE={os.environ['BASE']}"] if os.environ.get("BASE") else []
            build = [docker, "build", *secrets, *base, "-f", f"images/{name}/Dockerfile", "-t", reference, "."]
            for title, command in (("build", build), ("push", [docker, "push", reference])):
                with step(f"{title} {reference}"):
                    done = subprocess.run(command, cwd=repo, capture_output=True, text=True)
                if done.returncode != 0:
                    raise ClusterError(f"{title} of {reference} failed:\n{done.stderr[-4000:]}")
    return images
