"""The Kubernetes API as the operator uses it: objects are plain dictionaries, writes are fenced by leadership.

A thin edge over the official client's `kubernetes.aio.client.ApiClient`. Which kinds exist is a table, not discovery:
the operator touches a dozen of them and a table costs no request.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException

KubeObject: TypeAlias = dict[str, Any]

FIELD_MANAGER = "speculator-operator"
GROUP_VERSION = "speculator.dev/v1alpha1"
REQUEST_SECONDS = 15.0


@dataclass(frozen=True)
class Kind:
    """Where a kind lives in the API."""

    api_version: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """URL path of the collection (no name), an object, or its subresource."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        parts = [root, *(["namespaces", namespace] if namespace else []), self.plural]
        return "/".join([*parts, *([name] if name else []), *([subresource] if subresource else [])])


KINDS: Mapping[str, Kind] = {
    "Speculator": Kind(GROUP_VERSION, "speculators"),
    "TrainingPolicy": Kind(GROUP_VERSION, "trainingpolicies"),
    "SyncPolicy": Kind(GROUP_VERSION, "syncpolicies"),
    "SpeculatorVersion": Kind(GROUP_VERSION, "speculatorversions"),
    "StatefulSet": Kind("apps/v1", "statefulsets"),
    "Deployment": Kind("apps/v1", "deployments"),
    "Service": Kind("v1", "services"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "ConfigMap": Kind("v1", "configmaps"),
    "Secret": Kind("v1", "secrets"),
    "Pod": Kind("v1", "pods"),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "Event": Kind("events.k8s.io/v1", "events"),
}


class KubeError(Exception):
    """The API server refused a request or could not be reached (`status` 0)."""

    def __init__(self, what: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{what}: {status} {reason}: {message}" if status else f"{what}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        """Whether the object does not exist."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Whether somebody else wrote first, or the object exists already."""
        return self.status == 409


class NotLeaderError(Exception):
    """A write was about to happen although this process does not hold the Lease any more."""


class Requester(Protocol):
    """One API call; the seam at which tests count requests."""

    async def __call__(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        body: Any,
        content_type: str,
        what: str,
        seconds: float = REQUEST_SECONDS,
    ) -> KubeObject:
        """Send and return the decoded answer, within so many seconds; raises KubeError."""
        ...


async def connect(user_agent: str = FIELD_MANAGER) -> ApiClient:
    """An API client from the pod's service account, else from KUBECONFIG or ~/.kube/config."""
    configuration = Configuration()
    try:
        kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except kube_config.ConfigException:
        await kube_config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = 64
    client = ApiClient(configuration)
    client.user_agent = user_agent
    return client


def api_requester(api: ApiClient) -> Requester:
    """The real requester over an ApiClient."""

    async def request(
        method: str,
        path: str,
        query: list[tuple[str, str]],
        body: Any,
        content_type: str,
        what: str,
        seconds: float = REQUEST_SECONDS,
    ) -> KubeObject:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        try:
            method, url, sent, payload, _ = await api.param_serialize(
                method, path, query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = await api.call_api(
                method, url, sent, payload, _request_timeout=aiohttp.ClientTimeout(total=seconds)
            )
            data = await response.read()  # type: ignore[no-untyped-call]
        except (ApiException, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(what, 0, "Unreachable", f"{type(error).__name__}: {error}") from error
        try:
            answer = json.loads(data) if data else {}
        except ValueError:
            answer = {"message": data[:200].decode(errors="replace")}
        if not 200 <= response.status < 300:
            raise KubeError(what, response.status, answer.get("reason", ""), answer.get("message", ""))
        return dict(answer)

    return request


class Kube:
    """Reads and writes of objects.

    Every write first asks `fence`: it raises NotLeaderError when the Lease is lost, else it says for how many seconds
    a write may be in flight, so that none lands after another replica has taken over.
    """

    def __init__(self, request: Requester, fence: Callable[[], float]) -> None:
        self._request = request
        self._fence = fence

    async def get(self, kind: str, namespace: str, name: str) -> KubeObject | None:
        """An object, or None if it does not exist."""
        try:
            return await self._request(
                "GET", KINDS[kind].path(namespace, name), [], None, "application/json", f"get {kind} {namespace}/{name}"
            )
        except KubeError as error:
            if error.not_found:
                return None
            raise

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[KubeObject]:
        """All objects of a kind that a label selector matches; in every namespace if it is None."""
        query = [("limit", "500"), *([("labelSelector", selector)] if selector else [])]
        items: list[KubeObject] = []
        token = ""
        while True:
            page = await self._request(
                "GET",
                KINDS[kind].path(namespace),
                [*query, *([("continue", token)] if token else [])],
                None,
                "application/json",
                f"list {kind} in {namespace or 'all namespaces'}",
            )
            items += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return items

    async def apply(self, obj: KubeObject, subresource: str = "") -> KubeObject:
        """Server-side apply under our field manager; takes over fields that others had set."""
        kind, meta = obj["kind"], obj["metadata"]
        seconds = self._fence()
        return await self._request(
            "PATCH",
            KINDS[kind].path(meta["namespace"], meta["name"], subresource),
            [("fieldManager", FIELD_MANAGER), ("force", "true")],
            obj,
            "application/apply-patch+yaml",
            f"apply {kind} {meta['namespace']}/{meta['name']}",
            min(seconds, REQUEST_SECONDS),
        )

    async def create(self, obj: KubeObject) -> KubeObject:
        """Create; KubeError with `conflict` if it exists."""
        kind, meta = obj["kind"], obj["metadata"]
        seconds = self._fence()
        return await self._request(
            "POST",
            KINDS[kind].path(meta["namespace"]),
            [("fieldManager", FIELD_MANAGER)],
            obj,
            "application/json",
            f"create {kind} {meta['namespace']}/{meta['name']}",
            min(seconds, REQUEST_SECONDS),
        )

    async def replace_status(self, obj: KubeObject) -> KubeObject:
        """PUT the status of an object as read: KubeError with `conflict` if its resourceVersion is not the newest."""
        kind, meta = obj["kind"], obj["metadata"]
        seconds = self._fence()
        return await self._request(
            "PUT",
            KINDS[kind].path(meta["namespace"], meta["name"], "status"),
            [("fieldManager", FIELD_MANAGER)],
            obj,
            "application/json",
            f"write status of {kind} {meta['namespace']}/{meta['name']}",
            min(seconds, REQUEST_SECONDS),
        )

    async def merge(self, kind: str, namespace: str, name: str, patch: KubeObject) -> KubeObject:
        """JSON merge patch; put metadata.resourceVersion in the patch to make it conditional."""
        seconds = self._fence()
        return await self._request(
            "PATCH",
            KINDS[kind].path(namespace, name),
            [("fieldManager", FIELD_MANAGER)],
            patch,
            "application/merge-patch+json",
            f"patch {kind} {namespace}/{name}",
            min(seconds, REQUEST_SECONDS),
        )

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> bool:
        """Delete in the background; with a uid only that incarnation. False if it was gone already."""
        body: KubeObject = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        seconds = self._fence()
        try:
            await self._request(
                "DELETE",
                KINDS[kind].path(namespace, name),
                [],
                body,
                "application/json",
                f"delete {kind} {namespace}/{name}",
                min(seconds, REQUEST_SECONDS),
            )
        except KubeError as error:
            if error.not_found or (uid and error.conflict):
                return False
            raise
        return True


async def gather_objects(kube: Kube, kinds: tuple[str, ...], namespace: str, selector: str) -> list[KubeObject]:
    """Objects of several kinds that a selector matches; a kind is filled in, as lists leave it out."""
    pages = await asyncio.gather(*(kube.list(kind, namespace, selector) for kind in kinds))
    return [
        {"apiVersion": KINDS[kind].api_version, "kind": kind} | item
        for kind, page in zip(kinds, pages, strict=True)
        for item in page
    ]
