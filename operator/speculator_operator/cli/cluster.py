"""The cluster as the user sees it: kubeconfig, context, namespace, and the few calls that the commands make."""

import difflib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import urllib3
import yaml
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException

from speculator_operator.api.base import GROUP, VERSION
from speculator_operator.cli.errors import CliError, NotFound, api_error

KubeObject: TypeAlias = dict[str, Any]
Answer = TypeVar("Answer")

TIMEOUT = (5.0, 30.0)
"""Seconds to connect, and to read an answer."""
WATCH_SECONDS = 300
NEVER = float("inf")
_config: Any = config
_Watch: Any = watch.Watch


@dataclass(frozen=True)
class Where:
    """What the user said about the cluster; None: as the kubeconfig says."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None


class Cluster:
    """Calls with the user's rights, in one namespace. Raises CliError for whatever goes wrong."""

    def __init__(self, where: Where) -> None:
        configuration = client.Configuration()
        # The client looks at KUBECONFIG when it is imported; the shell's value now is what counts.
        file = str(where.kubeconfig) if where.kubeconfig else os.environ.get("KUBECONFIG") or None
        try:
            _config.load_kube_config(config_file=file, context=where.context, client_configuration=configuration)
            contexts, active = _config.list_kube_config_contexts(config_file=file)
        except (ConfigException, OSError, yaml.YAMLError) as error:
            raise CliError(_config_sentence(error, where)) from error
        chosen = next((entry for entry in contexts if entry["name"] == where.context), active)
        details = chosen.get("context") or {}
        # A retry would log a warning between our lines, and a dead address would be waited for twice.
        configuration.retries = urllib3.Retry(connect=0, read=0, redirect=0, other=0)
        self.namespace: str = where.namespace or details.get("namespace") or "default"
        self.user: str = details.get("user") or ""
        self.server: str = configuration.host
        # The client is typed in part only, and custom objects as `object`.
        self._api: Any = client.ApiClient(configuration)
        self._objects: Any = client.CustomObjectsApi(self._api)
        self._core: Any = client.CoreV1Api(self._api)

    # Reading

    def speculators(self, everywhere: bool = False) -> list[KubeObject]:
        """All Speculators of the namespace, or of all namespaces, by namespace and name."""
        if everywhere:
            found = self._call(
                "list speculators in all namespaces",
                lambda: self._objects.list_cluster_custom_object(
                    GROUP, VERSION, "speculators", _request_timeout=TIMEOUT
                ),
            )
        else:
            found = self._list("speculators")
        return sorted(found["items"], key=lambda obj: (obj["metadata"]["namespace"], obj["metadata"]["name"]))

    def speculator(self, name: str) -> KubeObject:
        """One Speculator; if there is none, NotFound names those with a similar name."""
        doing = f"get speculator {name} in namespace {self.namespace}"
        try:
            found: KubeObject = self._call(
                doing,
                lambda: self._objects.get_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, "speculators", name, _request_timeout=TIMEOUT
                ),
            )
        except NotFound as error:
            raise NotFound(f"There is no speculator {name} in namespace {self.namespace}{self._near(name)}") from error
        return found

    def versions(self, speculator: str) -> list[KubeObject]:
        """The SpeculatorVersions of a Speculator, ascending. Those of another that has the same labels are left out."""
        found = self._list("speculatorversions", f"{GROUP}/speculator={speculator}")
        ours = [obj for obj in found["items"] if obj["spec"]["speculator"] == speculator]
        return sorted(ours, key=lambda obj: int(obj["spec"]["version"]))

    def pods(self, speculator: str) -> list[KubeObject]:
        """Its pods, by name."""
        found = self._call(
            f"list pods in namespace {self.namespace}",
            lambda: self._core.list_namespaced_pod(
                self.namespace, label_selector=f"{GROUP}/speculator={speculator}", _request_timeout=TIMEOUT
            ),
        )
        pods: list[KubeObject] = self._api.sanitize_for_serialization(found.items)
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def secret(self, name: str) -> KubeObject:
        """A Secret with its data still encoded."""
        found = self._call(
            f"read secret {name} in namespace {self.namespace}",
            lambda: self._core.read_namespaced_secret(name, self.namespace, _request_timeout=TIMEOUT),
        )
        secret: KubeObject = self._api.sanitize_for_serialization(found)
        return secret

    def whoami(self) -> str:
        """The user as the API server knows them; as the kubeconfig calls them where the server does not say."""
        review = client.V1SelfSubjectReview(api_version="authentication.k8s.io/v1", kind="SelfSubjectReview")
        try:
            found = client.AuthenticationV1Api(self._api).create_self_subject_review(review, _request_timeout=TIMEOUT)
        except ApiException:
            return self.user
        user = found.status.user_info if found.status else None
        return str((user.username if user else "") or self.user)

    def changes(self, name: str, seconds: float = NEVER) -> Iterator[KubeObject]:
        """The Speculator now, and again after each change, until the time is over. Raises NotFound when it goes."""
        end = time.monotonic() + seconds
        seen = self.speculator(name)
        yield seen
        while (left := end - time.monotonic()) > 0:
            version = seen["metadata"]["resourceVersion"]
            for event in self._events(name, version, min(left, WATCH_SECONDS)):
                if event["type"] == "DELETED":
                    raise NotFound(f"Speculator {name} in namespace {self.namespace} was deleted.")
                if event["type"] == "ERROR":
                    break
                seen = event["object"]
                yield seen
                if time.monotonic() >= end:
                    return
            if time.monotonic() < end:
                # The watch ended: by its time, or because its version is too old. Look before watching again.
                latest = self.speculator(name)
                if latest["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]:
                    seen = latest
                    yield seen

    def _events(self, name: str, version: str, seconds: float) -> Iterator[KubeObject]:
        watching = _Watch()
        stream = watching.stream(
            self._objects.list_namespaced_custom_object,
            GROUP,
            VERSION,
            self.namespace,
            "speculators",
            field_selector=f"metadata.name={name}",
            resource_version=version,
            timeout_seconds=max(1, round(seconds)),
            _request_timeout=(TIMEOUT[0], seconds + 5),
        )
        try:
            while True:
                try:
                    event = self._call(f"watch speculators in namespace {self.namespace}", lambda: next(stream, None))
                except CliError as error:
                    cause = error.__cause__
                    if isinstance(cause, ApiException) and cause.status == 410:
                        return
                    raise
                if event is None:
                    return
                yield event
        finally:
            watching.stop()

    # Writing

    def patch(self, name: str, spec: Mapping[str, Any], version: str, dry_run: bool = False) -> KubeObject:
        """Merge into the spec, if the object is still at that resourceVersion. The object as it became."""
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        extra: dict[str, Any] = {"dry_run": "All"} if dry_run else {}
        # The client would send a JSON patch's content type for a list of types; a merge patch is what we mean.
        patched: KubeObject = self._call(
            f"patch speculator {name} in namespace {self.namespace}",
            lambda: self._objects.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                "speculators",
                name,
                body,
                field_manager="kubectl-speculator",
                _content_type="application/merge-patch+json",
                _request_timeout=TIMEOUT,
                **extra,
            ),
        )
        return patched

    # Inside

    def _list(self, plural: str, selector: str = "") -> KubeObject:
        found: KubeObject = self._call(
            f"list {plural} in namespace {self.namespace}",
            lambda: self._objects.list_namespaced_custom_object(
                GROUP, VERSION, self.namespace, plural, label_selector=selector, _request_timeout=TIMEOUT
            ),
        )
        return found

    def _near(self, name: str) -> str:
        try:
            names = [obj["metadata"]["name"] for obj in self.speculators()]
        except CliError:  # Only a help for the message; the user may get without being allowed to list.
            return "."
        if not names:
            return "; there are none in this namespace (-n chooses another)."
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        return f"; did you mean {' or '.join(near)}?" if near else f"; there are: {', '.join(names[:10])}."

    def _call(self, doing: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except ApiException as error:
            raise api_error(error, doing) from error
        except urllib3.exceptions.HTTPError as error:
            raise CliError(
                f"Could not {doing}: no answer from {self.server} ({_innermost(error)}); is the cluster up, and is it "
                "the right context?"
            ) from error


def _innermost(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    text = str(reason if reason is not None else error)
    text = re.sub(r"\[Errno -?\d+\] ", "", text.rsplit(": ", 1)[-1])
    return text.strip("()'\" ") or type(error).__name__


def _config_sentence(error: Exception, where: Where) -> str:
    text = str(error).removeprefix("Invalid kube-config file. ").strip().rstrip(".")
    source = f"kubeconfig {where.kubeconfig}" if where.kubeconfig else "your kubeconfig (KUBECONFIG or ~/.kube/config)"
    return f"Could not read {source}: {text}; name one with --kubeconfig, and a context of it with --context."
