"""What the demo does with Kubernetes: install the chart, apply manifests, read the loop's objects, clean up.

Everything a user would type goes through kubectl and helm and is logged; only the twice-a-second reading uses the API
client, because starting kubectl that often would take CPU time from the engine.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from .place import REPOSITORY, Place
from .shell import DemoError, output, run

GROUP, VERSION = "speculator.dev", "v1alpha1"
OPERATOR_NAMESPACE = "speculator-system"
RELEASE = "speculator-operator"
GROUP_KINDS = "speculators,speculatorversions,trainingpolicies,syncpolicies"


class Kube:
    """One cluster, one namespace of the demo."""

    def __init__(self, place: Place, namespace: str, log: Path) -> None:
        self._place, self.namespace, self._log = place, namespace, log
        configuration = client.Configuration()
        load: Any = config.load_kube_config  # untyped
        load(place.env.get("KUBECONFIG"), client_configuration=configuration)
        self._api = client.ApiClient(configuration)
        self._objects: Any = client.CustomObjectsApi(self._api)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> None:
        """Run kubectl, output into the log."""
        run(["kubectl", *arguments], self._log, self._place.env, stdin)

    def kubectl_output(self, *arguments: str) -> str:
        """Standard output of kubectl."""
        return output(["kubectl", *arguments], self._place.env)

    def install(self) -> None:
        """The operator by its Helm chart, with the images just built."""
        values: list[str] = []
        for name in ("operator", "runtime"):
            repository, _, tag = self._place.images[name].rpartition(":")
            key = {"operator": "image", "runtime": "images.runtime"}[name]
            values += ["--set-string", f"{key}.repository={repository}", "--set-string", f"{key}.tag={tag}"]
        chart = str(REPOSITORY / "charts" / "speculator-operator")
        run(
            ["helm", "upgrade", "--install", RELEASE, chart, "--namespace", OPERATOR_NAMESPACE, "--create-namespace",
             "--wait", "--timeout", "3m", *values],
            self._log, self._place.env,
        )  # fmt: skip

    def ensure_namespace(self) -> None:
        """The demo's namespace."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def ensure_credentials(self, name: str) -> None:
        """The Secret with the S3 keys, under the keys that a Speculator reads by default."""
        data = {"accessKeyId": self._place.s3.access_key_id, "secretAccessKey": self._place.s3.secret_access_key}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self.namespace},
            "stringData": data,
        }
        self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def apply(self, directory: Path) -> None:
        """kubectl apply of every manifest in a directory."""
        self.kubectl("apply", "--namespace", self.namespace, "-f", str(directory))

    def speculator(self, name: str) -> dict[str, Any]:
        """The Speculator; an empty object when there is none."""
        try:
            found: dict[str, Any] = self._objects.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, "speculators", name, _request_timeout=5
            )
            return found
        except ApiException as error:
            if error.status == 404:
                return {}
            raise

    def versions(self, speculator: str) -> list[dict[str, Any]]:
        """Its SpeculatorVersions."""
        listed = self._objects.list_namespaced_custom_object(
            GROUP, VERSION, self.namespace, "speculatorversions", _request_timeout=5
        )
        return [item for item in listed["items"] if item["spec"]["speculator"] == speculator]

    def read(self, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """Speculator and versions; None when the API server does not answer just now."""
        try:
            return self.speculator(name), self.versions(name)
        except (ApiException, HTTPError):
            return None

    def wait_ready(self, name: str, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait for condition Ready; raises DemoError with the conditions when it does not come."""
        deadline, said = time.monotonic() + seconds, ""
        while time.monotonic() < deadline:
            status = self.speculator(name).get("status") or {}
            conditions = {c["type"]: c for c in status.get("conditions", [])}
            if conditions.get("Ready", {}).get("status") == "True":
                return
            text = f"{status.get('phase', 'Pending')}: {status.get('message', 'waiting for the operator')}"
            if text != said:
                tell(text)
                said = text
            time.sleep(0.5)
        raise DemoError(
            f"Speculator {name} was not Ready after {seconds:.0f} s; it says: {said}. {self.describe(name)}"
        )

    def describe(self, name: str) -> str:
        """Pods and conditions in a few lines, for errors."""
        pods = self.kubectl_output("get", "pods", "-n", self.namespace, "-o", "wide", "--no-headers")
        return f"Pods:\n{pods}Look with: kubectl describe speculator {name} -n {self.namespace}"

    def service_url(self, name: str) -> str:
        """The Service's cluster IP: this machine is the node, so it is reachable from here."""
        found = json.loads(self.kubectl_output("get", "service", name, "-n", self.namespace, "-o", "json"))
        return f"http://{found['spec']['clusterIP']}:{found['spec']['ports'][0]['port']}"

    def port_forward(self, name: str, log: Path) -> tuple[subprocess.Popen[bytes], str]:
        """kubectl port-forward to the Service, for clusters elsewhere."""
        port = 18000
        command = ["kubectl", "port-forward", "-n", self.namespace, f"service/{name}", f"{port}:http"]
        process = subprocess.Popen(command, stdout=log.open("ab"), stderr=subprocess.STDOUT)
        time.sleep(3)
        if process.poll() is not None:
            raise DemoError(f"{' '.join(command)} ended at once; see {log}")
        return process, f"http://127.0.0.1:{port}"

    def collect(self, name: str, directory: Path) -> None:
        """Events and logs of all our pods into files; what cannot be had is named in the file instead."""
        wanted: Iterable[tuple[str, tuple[str, ...]]] = (
            ("events.txt", ("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")),
            ("resources.txt", ("get", f"{GROUP_KINDS},pods,services", "-n", self.namespace, "-o", "wide")),
            ("operator.log", ("logs", "-n", OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=speculator-operator",
                              "--tail=-1", "--prefix")),
            ("engine.log", ("logs", "-n", self.namespace, f"{name}-engine-0", "-c", "engine", "--tail=-1")),
            ("agent.log", ("logs", "-n", self.namespace, f"{name}-engine-0", "-c", "agent", "--tail=-1")),
            ("trainer.log", ("logs", "-n", self.namespace, f"deployment/{name}-trainer", "--tail=-1")),
        )  # fmt: skip
        for file, command in wanted:
            try:
                text = self.kubectl_output(*command)
            except DemoError as error:
                text = f"{error}\n"
            (directory / file).write_text(text, encoding="utf-8")

    def delete(self, name: str) -> list[str]:
        """kubectl delete speculator, waited for; returns what of it is still there after a minute."""
        self.kubectl("delete", "speculator", name, "-n", self.namespace, "--timeout=90s")
        deadline = time.monotonic() + 60
        while (left := self.left_of(name)) and time.monotonic() < deadline:
            time.sleep(1)
        return left

    def left_of(self, name: str) -> list[str]:
        """Objects labelled with the Speculator's name that exist."""
        kinds = "pods,services,secrets,configmaps,statefulsets,deployments,persistentvolumeclaims,speculatorversions"
        text = self.kubectl_output(
            "get", kinds, "-n", self.namespace, "-l", f"speculator.dev/speculator={name}", "-o", "name"
        )
        return text.split()


def resolved_manifests(source: Path, into: Path, bucket: str, prefix: str, place: Place) -> None:
    """Copy the manifests with this run's S3 server, bucket and prefix put in, so that `into` is what was applied."""
    into.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        if document["kind"] == "Speculator":
            s3 = document["spec"]["storage"]["s3"]
            s3 |= {"bucket": bucket, "prefix": prefix, "endpoint": place.s3.endpoint, "region": place.s3.region}
        (into / path.name).write_text(yaml.safe_dump(document, sort_keys=False))
