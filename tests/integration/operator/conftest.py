"""A namespace on a real API server, a bucket on a real S3 server, and an operator process that is not started yet."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration

from speculator_operator.kube.client import Kube, KubeObject, api_requester
from speculator_runtime.storage import Ledger
from support.apiserver import apiserver  # noqa: F401
from support.operator_harness import Kubelet, Operator, condition, speculator, sync_policy, until
from support.s3server import ACCESS_KEY, SECRET_KEY, S3Server, private_s3_server, s3_server, use_credentials  # noqa: F401


@dataclass
class World:
    """What a test arranges and looks at."""

    kube: Kube
    namespace: str
    s3: S3Server
    bucket: str
    operator: Operator
    kubelet: Kubelet

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.s3.settings(self.bucket, prefix=f"{self.namespace}/chat"))

    async def create_credentials(self) -> None:
        await self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "s3", "namespace": self.namespace},
                "stringData": {"accessKeyId": ACCESS_KEY, "secretAccessKey": SECRET_KEY},
            }
        )

    async def apply_speculator(self, obj: KubeObject | None = None, replicas: int = 1) -> KubeObject:
        obj = obj or speculator(self.namespace, self.bucket, self.s3.endpoint)
        obj["spec"]["serving"] = {"replicas": replicas}
        return await self.kube.create(obj)

    async def get(self) -> KubeObject | None:
        return await self.kube.get("Speculator", self.namespace, "chat")

    async def events(self) -> list[KubeObject]:
        return await self.kube.list("Event", self.namespace)

    async def until(self, what: str, check: Callable[[dict[str, Any]], Any], seconds: float = 30.0) -> None:
        async def holds() -> Any:
            return check(((await self.get()) or {}).get("status") or {})

        await until(what, holds, seconds, self._show)

    async def until_condition(self, kind: str, status: str, reason: str = "", seconds: float = 30.0) -> dict[str, Any]:
        async def holds() -> Any:
            found = condition(await self.get(), kind)
            fits = found.get("status") == status and (not reason or found["reason"] == reason)
            return found if fits else None

        return dict(await until(f"{kind} is {status} {reason}", holds, seconds, self._show))

    async def until_version(self, number: int, phase: str, seconds: float = 10.0) -> KubeObject:
        async def holds() -> Any:
            found = await self.kube.get("SpeculatorVersion", self.namespace, f"chat-{number:06d}")
            return found if found and (found.get("status") or {}).get("phase") == phase else None

        return dict(await until(f"version {number} is {phase}", holds, seconds, self._show))

    async def _show(self) -> Any:
        log = self.operator.log.read_text()[-3000:] if self.operator.log.exists() else ""
        return {"status": ((await self.get()) or {}).get("status"), "log": log.splitlines()}


@pytest.fixture
async def kube(apiserver) -> AsyncIterator[Kube]:  # noqa: F811
    configuration = Configuration()
    await kube_config.load_kube_config(config_file=str(apiserver.kubeconfig), client_configuration=configuration)
    async with ApiClient(configuration) as api:
        yield Kube(api_requester(api), lambda: 10.0)


@contextlib.asynccontextmanager
async def make_world(kube: Kube, apiserver, s3: S3Server, tmp_path) -> AsyncIterator[World]:  # noqa: F811
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    await kube._request(
        "POST",
        "/api/v1/namespaces",
        [],
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        "application/json",
        "namespace",
    )
    operator = Operator(apiserver.kubeconfig, namespace, tmp_path / "operator.log")
    world = World(kube, namespace, s3, s3.new_bucket(), operator, Kubelet(kube, namespace))
    await world.create_credentials()
    await kube.create(sync_policy(namespace))
    running = asyncio.create_task(world.kubelet.run())
    try:
        yield world
    finally:
        operator.kill()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.kubelet.close()


@pytest.fixture
async def world(kube, apiserver, s3_server, tmp_path, monkeypatch) -> AsyncIterator[World]:  # noqa: F811
    use_credentials(monkeypatch)
    async with make_world(kube, apiserver, s3_server, tmp_path) as made:
        yield made


@pytest.fixture
def own_s3(private_s3_server) -> S3Server:  # noqa: F811
    return private_s3_server


@pytest.fixture
async def own_s3_world(kube, apiserver, own_s3, tmp_path) -> AsyncIterator[World]:  # noqa: F811
    async with make_world(kube, apiserver, own_s3, tmp_path) as made:
        yield made
