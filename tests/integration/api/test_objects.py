"""The builders' objects at a real API server, under strict validation."""

import json
from typing import Any

import pytest

from support.apiserver import ApiServer
from support.golden import CASES, load


@pytest.fixture(scope="module")
def namespace(apiserver: ApiServer) -> str:
    apiserver.kubectl("create", "namespace", "models")
    # Pods that break Pod Security's strictest level would be named in a warning.
    apiserver.kubectl("label", "namespace", "models", "pod-security.kubernetes.io/warn=restricted")
    return "models"


@pytest.mark.parametrize("name", CASES)
def test_the_server_takes_inputs_and_outputs_and_a_second_time_changes_nothing(
    apiserver: ApiServer, namespace: str, name: str
) -> None:
    golden = load(name)
    apiserver.apply(*golden.inputs)
    objects = golden.build()
    warnings = apiserver.apply(*objects).stderr
    assert ("PodSecurity" in warnings) == golden.speculator.spec.serving.pod_template.host_ipc, warnings
    # The server writes a new claim once more when it is applied again, with the same content; from then on it is still.
    apiserver.apply(*objects)
    first = versions(apiserver, objects)
    apiserver.apply(*objects)
    assert versions(apiserver, objects) == first


def versions(apiserver: ApiServer, objects: list[dict[str, Any]]) -> dict[str, str]:
    names = [f"{obj['kind']}/{obj['metadata']['name']}" for obj in objects]
    answer = apiserver.kubectl("get", *names, "-n", objects[0]["metadata"]["namespace"], "-o", "json").stdout
    found = json.loads(answer)["items"]
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj["metadata"]["resourceVersion"] for obj in found}
