"""A real S3 server (versitygw on a temporary directory) for tests that read and write the ledger.

Use the fixtures in a conftest: `from support.s3server import s3_server, store  # noqa: F401`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from speculator_runtime.contracts.settings import StoreSettings

ACCESS_KEY = "local"
SECRET_KEY = "local-secret"


def find_versitygw() -> str | None:
    """The binary, where the local cluster keeps its programs, or on PATH."""
    cache = Path(os.environ.get("SPECULATOR_CACHE", "~/.cache/speculator-operator")).expanduser()
    folders = [os.environ.get("KUBEBUILDER_ASSETS", ""), str(cache / "bin"), os.environ.get("PATH", "")]
    return shutil.which("versitygw", path=os.pathsep.join(folder for folder in folders if folder))


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class S3Server:
    """A versitygw process; `stop` and `start` keep its port and data, to test what an outage does."""

    binary: str
    directory: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        for name in ("data", "sidecar"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        backend = ["posix", "--sidecar", str(self.directory / "sidecar"), str(self.directory / "data")]
        command = [self.binary, "--port", f"127.0.0.1:{self.port}", *backend]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("versitygw did not start:\n" + (self.directory / "log").read_text()[-2000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=1)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process = None

    def client(self):
        """A plain boto3 client with the right credentials, for arranging and looking."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}),
        )

    def settings(self, bucket: str, prefix: str = "") -> StoreSettings:
        return StoreSettings(bucket=bucket, prefix=prefix, endpoint=self.endpoint, path_style=True)

    def new_bucket(self) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the whole session; do not stop it (start your own with `private_s3_server`)."""
    server = _make(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def private_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server of the test's own, which it may stop and start again."""
    use_credentials(monkeypatch)
    server = _make(tmp_path / "s3")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def store(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> StoreSettings:
    """Settings of a fresh bucket, with prefix `ns/name`, and the credentials in the environment."""
    use_credentials(monkeypatch)
    return s3_server.settings(s3_server.new_bucket(), prefix="ns/name")


def use_credentials(monkeypatch: pytest.MonkeyPatch, access: str = ACCESS_KEY, secret: str = SECRET_KEY) -> None:
    """Put S3 credentials into this process's environment, as the pods have them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)


def _make(directory: Path) -> S3Server:
    binary = find_versitygw()
    if binary is None:
        message = "versitygw is not built: run `hack/cluster/cluster build`, or set KUBEBUILDER_ASSETS to its folder"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return S3Server(binary, directory, free_port())
