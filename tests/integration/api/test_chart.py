"""The Helm chart: it renders, the API server takes it, and its rights are those that the operator's calls need."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from speculator_operator.api import crds
from speculator_operator.kube.client import KINDS
from support.apiserver import REPOSITORY, ApiServer, require_binaries
from support.operator_harness import Operator, speculator, sync_policy
from support.s3server import ACCESS_KEY, SECRET_KEY, S3Server, s3_server  # noqa: F401

CHART = REPOSITORY / "charts/speculator-operator"
SYSTEM = "speculator-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:speculator-operator"


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [require_binaries("helm")["helm"], *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def render(*arguments: str) -> list[dict[str, Any]]:
    # Without a cluster Helm takes the version it was built against, which a build from source does not know.
    common = ("--namespace", SYSTEM, "--kube-version", "1.36.0")
    done = helm("template", "speculator-operator", str(CHART), *common, *arguments)
    assert done.returncode == 0, done.stderr
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [obj for obj in objects if obj["kind"] == kind]


def test_lint_has_nothing_to_say() -> None:
    done = helm("lint", "--strict", "--kube-version", "1.36.0", str(CHART))
    assert done.returncode == 0, done.stdout


def test_the_chart_s_crds_are_the_generated_ones_and_outlive_the_release() -> None:
    rendered = of_kind(render(), "CustomResourceDefinition")
    assert len(rendered) == len(crds.DEFINITIONS)
    for obj in rendered:
        assert obj["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    wanted = [crds.crd(definition) for definition in crds.DEFINITIONS]
    assert sorted(rendered, key=str) == sorted(yaml.safe_load_all(yaml.safe_dump_all(wanted)), key=str)


def test_crds_can_be_left_out() -> None:
    assert of_kind(render("--set", "crds.install=false"), "CustomResourceDefinition") == []


def test_the_api_server_takes_everything_that_is_rendered(apiserver: ApiServer) -> None:
    if not apiserver.kubectl("get", "namespace", SYSTEM, check=False).stdout:
        apiserver.kubectl("create", "namespace", SYSTEM)
    text = yaml.safe_dump_all(render("--set-string", "images.runtime.tag=7", "--set", "podLabels.team=x"))
    dry = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    apiserver.kubectl(*dry, stdin=text)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("replicsa=3", "replicsa"),
        ("replicas=-1", "replicas"),
        ("log.level=LOUD", "level"),
        ("timing.lease=0", "lease"),
        ("watchNamespaces={A_b}", "watchNamespaces"),
        ("metrics.service.enabled=false,metrics.serviceMonitor.enabled=true", "metrics.service.enabled=true"),
    ],
)
def test_a_wrong_value_is_refused_by_name(setting: str, words: str) -> None:
    done = helm("template", "x", str(CHART), "--kube-version", "1.36.0", "--set", setting)
    assert done.returncode != 0
    assert words in done.stderr


def test_the_operator_knows_every_flag_that_the_chart_gives_it() -> None:
    (deployment,) = of_kind(render("--set", "watchNamespaces={a,b}"), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command = [sys.executable, "-m", "speculator_operator.main", *container["args"], "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for argument in container["args"]:
        assert argument.split("=")[0] in done.stdout
    for name in ("SPECULATOR_RUNTIME_IMAGE", "SPECULATOR_SGLANG_IMAGE", "LOG_LEVEL", "LOG_FORMAT", "POD_NAMESPACE"):
        assert name in {variable["name"] for variable in container["env"]}


def test_rights_are_for_the_namespaces_that_are_named_and_no_others() -> None:
    objects = render("--set", "watchNamespaces={a,b}", "--set", "rbac.aggregate=false")
    assert of_kind(objects, "ClusterRole") == []
    assert of_kind(objects, "ClusterRoleBinding") == []
    assert {role["metadata"]["namespace"] for role in of_kind(objects, "Role")} == {"a", "b", SYSTEM}


def test_no_rule_has_a_wildcard_or_reaches_for_the_cluster_s_own_rights() -> None:
    for role in [*of_kind(render(), "ClusterRole"), *of_kind(render(), "Role")]:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"nodes", "pods/exec", "clusterroles", "roles", "rolebindings"} & set(rule["resources"])


@pytest.fixture(scope="module")
def installed(apiserver: ApiServer) -> Iterator[ApiServer]:
    """The chart's accounts and rights, at the API server."""
    if not apiserver.kubectl("get", "namespace", SYSTEM, check=False).stdout:
        apiserver.kubectl("create", "namespace", SYSTEM)
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    objects = [obj for obj in render() if obj["kind"] in kinds]
    apiserver.apply(*objects)
    yield apiserver
    apiserver.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(objects))


@pytest.mark.parametrize(
    ("verb", "resource", "namespace"),
    [
        ("create", "speculators.speculator.dev", "default"),
        ("delete", "speculators.speculator.dev", "default"),
        ("patch", "syncpolicies.speculator.dev", "default"),
        ("update", "speculatorversions.speculator.dev", "default"),
        ("watch", "secrets", "default"),
        ("delete", "pods", "default"),
        ("create", "pods/exec", "default"),
        ("create", "rolebindings.rbac.authorization.k8s.io", "default"),
        ("get", "leases.coordination.k8s.io/other", SYSTEM),
        ("create", "leases.coordination.k8s.io", "default"),
        ("list", "nodes", "default"),
    ],
)
def test_the_operator_may_not(installed: ApiServer, verb: str, resource: str, namespace: str) -> None:
    answer = installed.kubectl("auth", "can-i", verb, resource, f"--as={ACCOUNT}", "-n", namespace, check=False)
    assert answer.stdout.strip() == "no"


def test_the_operator_works_with_these_rights_and_no_others(
    installed: ApiServer,
    s3_server: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    """From a Speculator to its objects, through a change, to its end: no call is refused."""
    namespace = installed.new_namespace()
    operator = Operator(_account_kubeconfig(installed, tmp_path), namespace, tmp_path / "operator.log")
    # The last word on a flag wins: as in the chart, the Lease lies in the operator's own namespace.
    operator.flags = ("--lease-namespace", SYSTEM)
    installed.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3", "namespace": namespace},
            "stringData": {"accessKeyId": ACCESS_KEY, "secretAccessKey": SECRET_KEY},
        },
        sync_policy(namespace),
    )
    chat = speculator(namespace, s3_server.new_bucket(), s3_server.endpoint)
    chat["spec"]["trainer"] = {"storage": {"size": "1Gi"}}
    installed.apply(chat)
    operator.start()
    try:
        _await(installed, operator, "speculator/chat", namespace, "jsonpath={.status.phase}=Pending")
        _await(installed, operator, "statefulset/chat-engine", namespace, "create")
        installed.kubectl("scale", "speculator/chat", "--replicas=2", "-n", namespace)
        _await(installed, operator, "statefulset/chat-engine", namespace, "jsonpath={.spec.replicas}=2")
        # Here is no controller that takes the protection off a claim that no pod uses any more.
        unprotect = ("--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        installed.kubectl("patch", "pvc", "chat-trainer", "-n", namespace, *unprotect)
        installed.kubectl("delete", "speculator", "chat", "-n", namespace, "--timeout=30s")
    finally:
        operator.stop()
    left = installed.kubectl("get", "statefulsets,deployments,services,secrets", "-n", namespace, "-o", "name").stdout
    assert left.split() == ["secret/s3"]
    log = operator.log.read_text()
    assert "orbidden" not in log, log[-2000:]


def _await(installed: ApiServer, operator: Operator, what: str, namespace: str, until: str) -> None:
    done = installed.kubectl("wait", what, "-n", namespace, f"--for={until}", "--timeout=40s", check=False)
    assert done.returncode == 0, f"{what} {until}: {done.stderr}\n{operator.log.read_text()[-3000:]}"


def _account_kubeconfig(installed: ApiServer, tmp_path: Path) -> Path:
    token = installed.kubectl("create", "token", "speculator-operator", "-n", SYSTEM).stdout.strip()
    config = yaml.safe_load(installed.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def test_every_kind_that_the_operator_calls_is_named_in_the_chart() -> None:
    roles = [*of_kind(render(), "ClusterRole"), *of_kind(render(), "Role")]
    named = {resource for role in roles for rule in role["rules"] for resource in rule["resources"]}
    assert {kind.plural for kind in KINDS.values()} - {"networkpolicies"} <= named
