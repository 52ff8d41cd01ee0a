"""One machine for all cluster tests; missing rights or binaries are a reason to skip, but not in CI."""

import os
from collections.abc import Iterator

import pytest

from support.machine import Machine, cache, new_machine


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    missing = "" if os.geteuid() == 0 else "root is needed for namespaces"
    if not (cache() / "bin" / "kubelet").is_file():
        missing = "no binaries: run hack/cluster/cluster build"
    if missing and not os.environ.get("CI"):
        pytest.skip(missing)
    assert not missing, missing
    with new_machine() as machine:
        yield machine
