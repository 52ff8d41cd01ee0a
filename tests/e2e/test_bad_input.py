"""What a user sees who got something wrong: a condition or a refusal that names it and says what to do."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from demo.kube import Kube
from demo.place import Place
from demo.shell import DemoError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def speculator(name: str, place: Place, **spec: Any) -> dict[str, Any]:
    """A Speculator of the tiny target; `spec` replaces whole fields."""
    s3 = {
        "bucket": "speculator-e2e",
        "prefix": f"bad/{name}",
        "endpoint": place.s3.endpoint,
        "region": place.s3.region,
        "pathStyle": True,
        "credentialsSecretRef": {"name": "e2e-s3"},
    }
    base: dict[str, Any] = {
        "target": {"model": "s3://speculator-e2e/models/tiny"},
        "storage": {"s3": {**s3, **spec.pop("s3", {})}},
        "serving": {"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}},
        "trainer": {"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}},
    }
    return {
        "apiVersion": "speculator.dev/v1alpha1",
        "kind": "Speculator",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


def messages_of(kube: Kube, name: str, wanted: str, seconds: float = 90.0) -> list[str]:
    """Messages of conditions and phase once one of them holds `wanted`; fails with all of them after a while."""
    deadline, said = time.monotonic() + seconds, [""]
    while time.monotonic() < deadline:
        status = kube.speculator(name).get("status") or {}
        said = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])]
        said.append(status.get("message", ""))
        if any(wanted in text for text in said):
            return said
        time.sleep(1)
    pytest.fail(f"nothing said {wanted!r}:\n" + "\n".join(said))


@pytest.fixture
def namespace(installed: Callable[[str], Kube], tiny_target: str) -> Kube:
    return installed("e2e-bad-input")


@pytest.mark.parametrize(
    ("name", "spec", "wanted"),
    [
        ("no-bucket", {"s3": {"bucket": "speculator-nowhere"}}, "speculator-nowhere"),
        ("no-model", {"target": {"model": "s3://speculator-e2e/models/nowhere"}}, "models/nowhere"),
        ("no-policy", {"trainingPolicyRef": {"name": "nowhere"}}, "nowhere"),
        ("no-secret", {"s3": {"credentialsSecretRef": {"name": "nowhere"}}}, "nowhere"),
        ("no-server", {"s3": {"endpoint": "http://10.87.0.1:9"}}, "10.87.0.1:9"),
    ],
)
def test_a_condition_names_what_is_wrong(
    namespace: Kube, place: Place, name: str, spec: dict[str, Any], wanted: str
) -> None:
    namespace.kubectl("apply", "-n", namespace.namespace, "-f", "-", stdin=json.dumps(speculator(name, place, **spec)))
    try:
        said = messages_of(namespace, name, wanted)
        assert any(text.startswith("Ready=False") for text in said)
    finally:
        left = namespace.delete(name)
    assert left == []


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"mode": "Pinned"}, "pinnedVersion is given exactly when mode is Pinned"),
        ({"serving": {"tensorParallelSize": 2}}, "the reference engine runs on one device"),
        ({"target": {"model": "SmolLM2"}}, "spec.target.model"),
        ({"drafter": {"steps": 2, "draftTokens": 9}}, "draftTokens is steps + 1"),
    ],
)
def test_impossible_values_are_refused_when_they_are_applied(
    namespace: Kube, place: Place, spec: dict[str, Any], wanted: str
) -> None:
    body = json.dumps(speculator("impossible", place, **spec))
    with pytest.raises(DemoError) as refused:
        namespace.kubectl("apply", "-n", namespace.namespace, "-f", "-", stdin=body)
    assert wanted in str(refused.value)
    assert namespace.speculator("impossible") == {}
