"""One machine for all cluster tests; missing rights or binaries are a reason to skip, but not in CI."""

import os
from collections.abc import Iterator

import pytest

from support.machine import Machine, cache, new_machine, traces

PODS = """
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: pause
    image: localhost/speculator/pause:1
    volumeMounts: [{name: memory, mountPath: /memory}]
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
---
apiVersion: v1
kind: Pod
metadata: {name: two}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: pause, image: "localhost/speculator/pause:1"}]
"""


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    missing = "" if os.geteuid() == 0 else "root is needed for namespaces"
    if not (cache() / "bin" / "kubelet").is_file():
        missing = "no binaries: run hack/cluster/cluster build"
    if missing and not os.environ.get("CI"):
        pytest.skip(missing)
    assert not missing, missing
    with new_machine() as machine:
        yield machine


@pytest.fixture(scope="session")
def clean(machine: Machine) -> dict[str, str]:
    """The machine's traces before any cluster was on it."""
    return traces(machine)


@pytest.fixture
def running(machine: Machine, clean: dict[str, str]) -> Machine:
    """The machine with the cluster up and two pods running."""
    machine.cluster("up")
    # The pods' token comes from an account that a controller makes a moment after the node is Ready.
    machine.kubectl("apply", "-f", "-", text=PODS)
    machine.wait_for_pod("one")
    machine.wait_for_pod("two")
    return machine
