"""The real cluster, with the operator installed by its Helm chart, once for all end-to-end tests."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import objectstore
from demo.kube import Kube
from demo.place import Place, existing, existing_place, local_place

BUCKET = "speculator-e2e"
SECRET = "e2e-s3"


@pytest.fixture(scope="session")
def place() -> Place:
    """The cluster, up, with images built from this tree."""
    if not existing() and os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("the local cluster needs root; or set CLUSTER=existing")
    return existing_place() if existing() else local_place()


@pytest.fixture(scope="session")
def installed(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Kube]:
    """Helm has installed the operator; gives a namespace with S3 credentials, by name."""
    log = tmp_path_factory.mktemp("e2e") / "commands.log"
    Kube(place, "default", log).install()
    objectstore.ensure_bucket(objectstore.client_of(place.s3), BUCKET)

    def namespace(name: str) -> Kube:
        kube = Kube(place, name, log)
        kube.ensure_namespace()
        kube.ensure_credentials(SECRET)
        return kube

    return namespace


@pytest.fixture(scope="session")
def bucket(place: Place, installed: object) -> objectstore.Bucket:
    """The tests' bucket."""
    return objectstore.Bucket(objectstore.client_of(place.s3), BUCKET)


@pytest.fixture(scope="session")
def tiny_target(bucket: objectstore.Bucket, tmp_path_factory: pytest.TempPathFactory) -> str:
    """s3:// URL of a random target: many thin layers, so that a one-layer drafter is cheap beside it."""
    from support.tiny_target import make_tiny_target

    directory: Path = make_tiny_target(tmp_path_factory.mktemp("tiny"), layers=24, hidden=64, vocab=512, seed=1)
    bucket.upload_directory("models/tiny", directory)
    return f"s3://{BUCKET}/models/tiny"
