"""The kustomize base and the samples at a real API server; the demo's and the end-to-end tests' manifests too."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from support.apiserver import REPOSITORY, ApiServer, require_binaries

MANIFESTS = REPOSITORY / "manifests"
SAMPLES = sorted((MANIFESTS / "samples").glob("*.yaml"))
USED_ELSEWHERE = sorted((REPOSITORY / "hack/demo/manifests").glob("*.yaml")) + sorted(
    (REPOSITORY / "tests/e2e/manifests").glob("*.yaml")
)


def relative(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_the_base_installs_what_the_chart_installs() -> None:
    helm = Path(require_binaries("helm")["helm"])
    environment = {**os.environ, "PATH": f"{helm.parent}{os.pathsep}{os.environ['PATH']}"}
    rendered = subprocess.run([MANIFESTS / "render", "-"], env=environment, capture_output=True, text=True, check=True)
    committed = (MANIFESTS / "base/operator.yaml").read_text()
    assert committed == rendered.stdout, "the chart changed: run manifests/render"


def test_the_api_server_takes_the_base(apiserver: ApiServer) -> None:
    text = apiserver.kubectl("kustomize", str(MANIFESTS / "base")).stdout
    objects = list(yaml.safe_load_all(text))
    definitions = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    assert len(definitions) == 4
    (namespace,) = (obj for obj in objects if obj["kind"] == "Namespace")
    # A dry run makes no namespace, so that what lies in it needs one that exists.
    apiserver.apply(namespace)
    dry = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    apiserver.kubectl(*dry, stdin=text)


@pytest.mark.parametrize("path", [*SAMPLES, *USED_ELSEWHERE], ids=relative)
def test_a_manifest_of_ours_is_taken_under_strict_validation(apiserver: ApiServer, path: Path) -> None:
    namespace = apiserver.new_namespace()
    apiserver.kubectl("apply", "--server-side", "--validate=strict", "-n", namespace, "-f", str(path))


def test_the_smallest_sample_names_a_model_and_a_bucket_and_nothing_else() -> None:
    spec = yaml.safe_load((MANIFESTS / "samples/smallest.yaml").read_text())["spec"]
    assert set(spec) == {"target", "storage"}
    assert set(spec["target"]) == {"model"}
    assert set(spec["storage"]["s3"]) == {"bucket"}
