"""What the tests of the operator share: the operator as a process, and a stand-in for controllers and kubelet.

The API server, the S3 server and the operator process are real. Pods cannot run here (no kubelet): `Kubelet` creates
them from the StatefulSet, says that they are ready, and answers on their addresses as agents and trainer do.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speculator_operator.kube.client import KINDS, Kube, KubeError, KubeObject
from speculator_operator.kube.observe import secret_values
from support.agent_server import AgentServer
from support.s3server import free_port
from support.trainer_server import TrainerServer

POLICY = "quick"


def speculator(namespace: str, bucket: str, endpoint: str, name: str = "chat", **spec: Any) -> KubeObject:
    """The smallest Speculator on the tests' S3 server, with a quick SyncPolicy."""
    s3 = {"bucket": bucket, "endpoint": endpoint, "pathStyle": True, "credentialsSecretRef": {"name": "s3"}}
    return {
        "apiVersion": "speculator.dev/v1alpha1",
        "kind": "Speculator",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "target": {"model": "hf://tests/tiny"},
            "storage": {"s3": s3},
            "syncPolicyRef": {"name": POLICY},
            **spec,
        },
    }


def sync_policy(namespace: str, **canary: Any) -> KubeObject:
    """Blocks of a second (the agent server makes them faster), no cool-down, no holdback."""
    return {
        "apiVersion": "speculator.dev/v1alpha1",
        "kind": "SyncPolicy",
        "metadata": {"name": POLICY, "namespace": namespace},
        "spec": {
            "canary": {"block": "1s", "washout": "100ms", "cooldown": "0s", **canary},
            "holdback": {"sharePercent": 0},
        },
    }


@dataclass
class Operator:
    """The operator process."""

    kubeconfig: Path
    namespace: str
    log: Path
    flags: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> "Operator":
        command = [
            sys.executable,
            "-m",
            "speculator_operator.main",
            *("--namespace", self.namespace, "--lease-namespace", self.namespace),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--rollout-seconds", "0.3", "--idle-seconds", "2", "--objects-seconds", "2", "--ledger-seconds", "0.5"),
            *("--lease-seconds", "3", *self.flags),
        ]
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "OMP_NUM_THREADS": "1"}
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "POD_NAME", "POD_NAMESPACE"):
            environment.pop(name, None)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        return self

    def kill(self) -> None:
        """As a node that loses power."""
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """As a kubelet does: a signal, and time to end."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -9
        finally:
            self.process = None

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a health or metrics page; 0 if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples with these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            if head.split("{")[0] == name and all(f'{key}="{text}"' in head for key, text in labels.items()):
                total += float(value)
        return total

    def requests(self, *methods: str) -> dict[str, float]:
        """Requests to the API server so far, by method and kind; Leases left out."""
        counted: dict[str, float] = {}
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith("speculator_kube_requests_total{") and 'kind="Lease"' not in line:
                head, _, value = line.rpartition(" ")
                if any(f'method="{method}"' in head for method in methods):
                    counted[head] = float(value)
        return counted


@dataclass
class Kubelet:
    """Plays StatefulSet controller, Deployment controller and kubelet for one namespace."""

    kube: Kube
    namespace: str
    configure: Callable[[AgentServer], None] = lambda agent: None
    """Called for each new agent before it starts."""
    agents: dict[str, AgentServer] = field(default_factory=dict)
    """By pod name."""
    trainers: dict[str, TrainerServer] = field(default_factory=dict)
    subnet: str = field(default_factory=lambda: f"127.{random.randint(2, 250)}.{random.randint(1, 250)}")
    _addresses: int = 0

    async def run(self) -> None:
        while True:
            with contextlib.suppress(KubeError):
                await self._step()
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        for server in (*self.agents.values(), *self.trainers.values()):
            await server.stop()

    async def _step(self) -> None:
        wanted: dict[str, tuple[str, KubeObject]] = {}
        for workload in await self.kube.list("StatefulSet", self.namespace):
            name, count = workload["metadata"]["name"], workload["spec"].get("replicas", 1)
            wanted |= {f"{name}-{i}": ("engine", workload) for i in range(count)}
        for workload in await self.kube.list("Deployment", self.namespace):
            wanted[f"{workload['metadata']['name']}-0"] = ("trainer", workload)
        pods = {pod["metadata"]["name"]: pod for pod in await self.kube.list("Pod", self.namespace)}
        for name in set(pods) - set(wanted):
            await self._remove(name)
        for name in set(wanted) - set(pods):
            await self._create(name, *wanted[name])

    async def _create(self, name: str, component: str, workload: KubeObject) -> None:
        secret = await self.kube.get("Secret", self.namespace, f"{workload['metadata']['labels'][LABEL]}-tokens")
        if secret is None:
            return
        labels = workload["spec"]["template"]["metadata"]["labels"]
        pod = await self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "serviceAccountName": workload["spec"]["template"]["spec"]["serviceAccountName"],
                    "containers": [{"name": "main", "image": "none"}],
                },
            }
        )
        self._addresses += 1
        address = f"{self.subnet}.{self._addresses}"
        if component == "engine":
            agent = AgentServer(name, pod["metadata"]["uid"], token=secret_values(secret)["agent-token"])
            self.configure(agent)
            await agent.start(address)
            self.agents[name] = agent
        else:
            self.trainers[name] = TrainerServer()
            await self.trainers[name].start(address)
        await self.set_status(name, podIP=address, phase="Running", conditions=[{"type": "Ready", "status": "True"}])

    async def set_status(self, name: str, **status: Any) -> None:
        pod = await self.kube.get("Pod", self.namespace, name)
        assert pod is not None
        pod = {"apiVersion": "v1", "kind": "Pod", **pod, "status": {**(pod.get("status") or {}), **status}}
        await self.kube.replace_status(pod)

    async def _remove(self, name: str) -> None:
        await self.kube._request(
            "DELETE",
            KINDS["Pod"].path(self.namespace, name),
            [("gracePeriodSeconds", "0")],
            None,
            "application/json",
            f"delete pod {name}",
        )
        server = self.agents.pop(name, None) or self.trainers.pop(name, None)
        if server:
            await server.stop()


LABEL = "speculator.dev/speculator"


def condition(obj: KubeObject | None, kind: str) -> dict[str, Any]:
    """A condition of a Speculator; {} if it has none of the kind."""
    found = ((obj or {}).get("status") or {}).get("conditions") or []
    return next((c for c in found if c["type"] == kind), {})


async def until(what: str, check: Callable[[], Awaitable[Any]], seconds: float = 30.0, show: Any = None) -> Any:
    """The first truthy answer; fails with `what` and the last state that `show` gives."""
    end = time.monotonic() + seconds
    while True:
        answer = await check()
        if answer:
            return answer
        if time.monotonic() > end:
            state = json.dumps(await show(), indent=1, default=str)[-6000:] if show else ""
            raise AssertionError(f"after {seconds} s still not: {what}\n{state}")
        await asyncio.sleep(0.1)
