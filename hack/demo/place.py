"""Where the demo runs: which cluster, which images, which S3 server. Brings the local cluster up when it is ours."""

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .shell import DemoError, output, show
from .target import cache_directory

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER = REPOSITORY / "hack" / "cluster" / "cluster"


@dataclass(frozen=True)
class S3Access:
    """An S3 server that pods reach under `endpoint`."""

    endpoint: str
    region: str
    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True)
class Place:
    """A cluster ready for the demo. `env` makes kubectl and helm find it; `local` means this machine is its node."""

    env: Mapping[str, str]
    s3: S3Access
    images: Mapping[str, str]
    local: bool


def existing() -> bool:
    """Whether the user's own cluster is wanted (CLUSTER=existing)."""
    wanted = os.environ.get("CLUSTER", "local")
    if wanted not in {"local", "existing"}:
        raise DemoError(f"CLUSTER={wanted}: use local (made on this machine) or existing (the current kube context)")
    return wanted == "existing"


def local_place() -> Place:
    """Bring the local cluster and its images up, showing their own progress; nothing is done twice."""
    show([str(CLUSTER), "up"])
    show([str(CLUSTER), "images"])
    values = parse_exports(output([str(CLUSTER), "env"]))
    images = cache_directory() / os.environ.get("SPECULATOR_CLUSTER", "cluster") / "images.json"
    try:
        names = json.loads(images.read_text())
    except OSError as error:
        raise DemoError(f"{CLUSTER} images left no {images}: {error.strerror}") from error
    return Place(
        env={"KUBECONFIG": values["KUBECONFIG"], "PATH": values["PATH"]}, s3=_s3(values), images=names, local=True
    )


def existing_place() -> Place:
    """The current kube context, images from IMAGE_REGISTRY, S3 from the standard AWS variables."""
    registry = os.environ.get("IMAGE_REGISTRY")
    if not registry:
        raise DemoError("CLUSTER=existing needs IMAGE_REGISTRY=REGISTRY/PATH, where `make images` pushed to")
    tag = os.environ.get("IMAGE_TAG", "latest")
    images = {name: f"{registry}/speculator-{name}:{tag}" for name in ("operator", "runtime")}
    return Place(env={}, s3=_s3(os.environ), images=images, local=False)


def _s3(values: Mapping[str, str]) -> S3Access:
    wanted = ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    if missing := [name for name in wanted if not values.get(name)]:
        raise DemoError(f"{', '.join(missing)} not set: the demo needs an S3 server that pods can reach")
    return S3Access(values[wanted[0]], values.get("AWS_REGION", "us-east-1"), values[wanted[1]], values[wanted[2]])


def parse_exports(text: str) -> dict[str, str]:
    """Variables of `export NAME=VALUE` lines; $PATH is put in."""
    values = {}
    for line in text.splitlines():
        words = shlex.split(line)
        if len(words) == 2 and words[0] == "export" and "=" in words[1]:
            name, value = words[1].split("=", 1)
            values[name] = value.replace("$PATH", os.environ.get("PATH", ""))
    return values
