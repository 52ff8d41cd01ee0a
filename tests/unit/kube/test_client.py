"""Requests to the API server: paths, pages, and the fence before every write."""

from typing import Any

import pytest

from speculator_operator.kube.client import KINDS, Kube, KubeError, NotLeaderError


class Server:
    """Answers from a list, remembers what was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, str], Any, float]] = []

    async def __call__(self, method, path, query, body, content_type, what, seconds=15.0):
        self.asked.append((method, path, dict(query), body, seconds))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer


SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "namespace": "ns"}}


def lost() -> float:
    raise NotLeaderError("lost")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Service", "/api/v1/namespaces/ns/services/chat/status"),
        ("StatefulSet", "/apis/apps/v1/namespaces/ns/statefulsets/chat/status"),
        ("Speculator", "/apis/speculator.dev/v1alpha1/namespaces/ns/speculators/chat/status"),
    ],
)
def test_paths(kind: str, path: str) -> None:
    assert KINDS[kind].path("ns", "chat", "status") == path
    assert KINDS["Pod"].path(None) == "/api/v1/pods"


async def test_a_list_reads_all_pages() -> None:
    server = Server({"items": [{"a": 1}], "metadata": {"continue": "next"}}, {"items": [{"a": 2}], "metadata": {}})
    assert await Kube(server, lost).list("Pod", "ns", "app=x") == [{"a": 1}, {"a": 2}]
    assert server.asked[1][2] == {"limit": "500", "labelSelector": "app=x", "continue": "next"}


async def test_what_does_not_exist_is_none_and_other_errors_are_raised() -> None:
    server = Server(KubeError("get", 404, "NotFound", "no"), KubeError("get", 403, "Forbidden", "no right"))
    kube = Kube(server, lost)
    assert await kube.get("Service", "ns", "chat") is None
    with pytest.raises(KubeError, match="403 Forbidden: no right"):
        await kube.get("Service", "ns", "chat")


@pytest.mark.parametrize(
    "write",
    [
        lambda kube: kube.apply(SERVICE),
        lambda kube: kube.create(SERVICE),
        lambda kube: kube.replace_status(SERVICE),
        lambda kube: kube.merge("Service", "ns", "chat", {}),
        lambda kube: kube.delete("Service", "ns", "chat"),
    ],
)
async def test_no_write_leaves_a_process_that_does_not_lead(write) -> None:
    server = Server()
    with pytest.raises(NotLeaderError):
        await write(Kube(server, lost))
    assert server.asked == []


async def test_a_write_may_not_be_in_flight_longer_than_the_lease_holds() -> None:
    server = Server()
    await Kube(server, lambda: 3.5).apply(SERVICE)
    await Kube(server, lambda: 3600.0).apply(SERVICE)
    assert [asked[4] for asked in server.asked] == [3.5, 15.0]


async def test_server_side_apply_names_the_field_manager_and_takes_over() -> None:
    server = Server()
    await Kube(server, lambda: 9.0).apply(SERVICE, "status")
    method, path, query, body, _ = server.asked[0]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/services/chat/status")
    assert query == {"fieldManager": "speculator-operator", "force": "true"}
    assert body == SERVICE


async def test_deleting_another_incarnation_is_not_deleting() -> None:
    server = Server(KubeError("delete", 409, "Conflict", "uid"), KubeError("delete", 404, "NotFound", "gone"), {})
    kube = Kube(server, lambda: 9.0)
    assert not await kube.delete("Service", "ns", "chat", "old-uid")
    assert not await kube.delete("Service", "ns", "chat")
    assert await kube.delete("Service", "ns", "chat")
    assert server.asked[0][3]["preconditions"] == {"uid": "old-uid"}
