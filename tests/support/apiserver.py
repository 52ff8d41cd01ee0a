"""A real API server (etcd and kube-apiserver, no nodes) with our CRDs, one for the whole test session.

Use the fixture in a conftest: `from support.apiserver import apiserver  # noqa: F401`. Needs no root. Binaries: from
KUBEBUILDER_ASSETS, else from where the local cluster keeps its programs, else from PATH.
"""

import ctypes
import functools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

REPOSITORY = Path(__file__).parents[2]
NEEDED = ("etcd", "kube-apiserver", "kubectl")
ADMIN_TOKEN = "admin-of-a-test"
START_SECONDS = 90


def find_binary(name: str) -> str | None:
    """Where a program is, or None."""
    cache = Path(os.environ.get("SPECULATOR_CACHE", "~/.cache/speculator-operator")).expanduser()
    folders = [os.environ.get("KUBEBUILDER_ASSETS", ""), str(cache / "bin"), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if folder))


def require_binaries(*names: str) -> dict[str, str]:
    """Paths by name. Skips the test if one is missing; fails instead where CI is set."""
    found = {name: find_binary(name) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        text = f"{', '.join(missing)} not found: run `make cluster-up` once, or set KUBEBUILDER_ASSETS to their folder"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    return {name: path for name, path in found.items() if path is not None}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """In the child: die when pytest dies, however it dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass
class ApiServer:
    """The running server. `kubeconfig` is the administrator's."""

    directory: Path
    binaries: dict[str, str]
    url: str = ""
    kubeconfig: Path = Path()
    _processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start(self) -> None:
        """Start both programs, wait until the server is ready, install the CRDs."""
        etcd, peer, secure = _free_port(), _free_port(), _free_port()
        self._run(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )
        key = self.directory / "accounts.key"
        key.write_bytes(
            ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        tokens = self.directory / "tokens.csv"
        tokens.write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--cert-dir={self.directory / 'certificates'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={secure}",
            "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # No controller makes service accounts and their tokens here; pods would be refused for want of them.
            "--disable-admission-plugins=ServiceAccount",
        )
        self.url = f"https://127.0.0.1:{secure}"
        self._await_ready()
        self.kubeconfig = self._write_kubeconfig()
        self.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")

    def stop(self) -> None:
        """End both programs."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Run kubectl as administrator; raises AssertionError with its words unless `check` is false."""
        command = [self.binaries["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def apply(self, *objects: dict[str, Any], check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Server-side apply with strict field validation."""
        return self.kubectl(
            "apply",
            "--server-side",
            "--validate=strict",
            "-f",
            "-",
            stdin=yaml.safe_dump_all(objects),
            check=check,
        )

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """An object; raises AssertionError if it does not exist."""
        return dict(json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json").stdout))

    def new_namespace(self) -> str:
        """A namespace of its own for a test."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.kubectl("create", "namespace", name)
        return name

    @functools.cached_property
    def certificate(self) -> Path:
        """The server's own certificate, to trust it by."""
        return self.directory / "certificates" / "apiserver.crt"

    def _run(self, program: str, *arguments: str) -> None:
        with (self.directory / f"{program}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [self.binaries[program], *arguments],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    preexec_fn=_end_with_parent,
                )
            )

    def _await_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            for process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{process.args[0]} ended with status {process.returncode}:\n{self._logs()}")
            if time.monotonic() > end:
                raise RuntimeError(f"the API server was not ready after {START_SECONDS} s:\n{self._logs()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        if not self.certificate.is_file():
            return False
        try:
            context = ssl.create_default_context(cafile=str(self.certificate))
            request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
            with urllib.request.urlopen(request, timeout=5, context=context) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.directory.glob("*.log")))

    def _write_kubeconfig(self) -> Path:
        path = self.directory / "kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "admin", "user": {"token": ADMIN_TOKEN}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                }
            )
        )
        return path


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One server for the session; tests keep apart by namespaces (`apiserver.new_namespace()`)."""
    server = ApiServer(tmp_path_factory.mktemp("apiserver"), require_binaries(*NEEDED))
    try:
        server.start()
        yield server
    finally:
        server.stop()
