"""What the pods of engine and trainer have in common: security, mounts, environment, overrides."""

from collections.abc import Iterable
from typing import Any

from speculator_operator.api.pods import EnvVar, PodTemplate, Resources
from speculator_operator.api.speculator import Speculator

from .names import (
    CONFIG_DIRECTORY,
    CONFIG_HASH,
    DATA_DIRECTORY,
    RUN_DIRECTORY,
    SECRETS_DIRECTORY,
    TARGET_DIRECTORY,
    Component,
    KubeObject,
    component_labels,
)

USER = 65532
SECRET_MODE = 0o440

CONTAINER_SECURITY: KubeObject = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def pod_template(
    speculator: Speculator,
    component: Component,
    overrides: PodTemplate,
    config_sha256: str,
    volumes: list[KubeObject],
    **spec: Any,
) -> KubeObject:
    """A pod template with our defaults, then the user's overrides; our labels stay, selectors use them."""
    name = speculator.metadata.name
    pod: KubeObject = {
        "serviceAccountName": f"{name}-{component}",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security() | (overrides.security_context or {}),
        **spec,
        "volumes": [
            {"name": "config", "configMap": {"name": f"{name}-config"}},
            {"name": "secrets", "secret": {"secretName": f"{name}-tokens", "defaultMode": SECRET_MODE}},
            {"name": "run", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            *volumes,
            *_shared_memory_volume(overrides),
            *overrides.volumes,
        ],
    }
    return {
        "metadata": {
            "labels": overrides.labels | component_labels(speculator, component),
            "annotations": overrides.annotations | {CONFIG_HASH: config_sha256},
        },
        "spec": pod | _scheduling(overrides),
    }


def pod_security() -> KubeObject:
    """Security context of our pods: not root, the runtime's seccomp profile, volumes that the group may write."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container(
    speculator: Speculator,
    name: str,
    image: str,
    command: list[str],
    env: list[KubeObject],
    mounts: list[KubeObject],
    **rest: Any,
) -> KubeObject:
    """A container with our security context and the mounts that all have."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": speculator.spec.engine.image_pull_policy,
        "command": command,
        "env": env,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_DIRECTORY, "readOnly": True},
            {"name": "secrets", "mountPath": SECRETS_DIRECTORY, "readOnly": True},
            {"name": "run", "mountPath": RUN_DIRECTORY},
            {"name": "data", "mountPath": DATA_DIRECTORY},
            {"name": "tmp", "mountPath": "/tmp"},
            *mounts,
        ],
        # Logs end in the pod's status: why a container failed is then in `kubectl describe`, and in our conditions.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **{key: value for key, value in rest.items() if value},
    }


def fetch_container(speculator: Speculator, image: str, settings: str, overrides: PodTemplate) -> KubeObject:
    """The init container `fetch-target` that fills /models/target."""
    token = speculator.spec.target.token_secret_ref
    env = base_env(speculator)
    if token is not None:
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}})
    env.append({"name": "HF_HOME", "value": "/tmp/huggingface"})
    return container(
        speculator,
        "fetch-target",
        image,
        ["speculator-fetch", "--settings", f"{CONFIG_DIRECTORY}/{settings}"],
        merge_env(env, overrides.env),
        [{"name": "target", "mountPath": TARGET_DIRECTORY}],
        resources={"requests": {"cpu": "100m", "memory": "256Mi"}},
    )


def base_env(speculator: Speculator) -> list[KubeObject]:
    """Who the pod is, and how it reaches the bucket."""
    env: list[KubeObject] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in (
            ("POD_NAME", "metadata.name"),
            ("POD_UID", "metadata.uid"),
            ("POD_NAMESPACE", "metadata.namespace"),
        )
    ]
    credentials = speculator.spec.storage.s3.credentials_secret_ref
    if credentials is not None:
        env += [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": credentials.name, "key": key}}}
            for name, key in (
                ("AWS_ACCESS_KEY_ID", credentials.access_key_id),
                ("AWS_SECRET_ACCESS_KEY", credentials.secret_access_key),
            )
        ]
    return [*env, {"name": "HOME", "value": "/tmp"}]


def threads_env(container_name: str) -> KubeObject:
    """OMP_NUM_THREADS from the CPU limit, rounded up: more threads than CPUs make single steps take a second."""
    limit = {"containerName": container_name, "resource": "limits.cpu", "divisor": "1"}
    return {"name": "OMP_NUM_THREADS", "valueFrom": {"resourceFieldRef": limit}}


def merge_env(ours: list[KubeObject], *later: Iterable[EnvVar]) -> list[KubeObject]:
    """Environment by name, the last word wins; a variable that was there keeps its place."""
    merged = {entry["name"]: entry for entry in ours}
    for variables in later:
        merged |= {variable.name: variable.wire() for variable in variables}
    return list(merged.values())


def resources(wanted: Resources, default: KubeObject | None = None) -> KubeObject:
    """Requests and limits; the default holds when neither is given."""
    given = {key: value for key, value in wanted.wire().items() if value}
    return given or (default or {})


def user_mounts(overrides: PodTemplate) -> list[KubeObject]:
    """Mounts that the user adds to the main container, /dev/shm included."""
    shared = [{"name": "shm", "mountPath": "/dev/shm"}] if overrides.shm_size else []
    return [*shared, *overrides.volume_mounts]


def http_probe(path: str, port: str, **timing: int) -> KubeObject:
    """An HTTP probe."""
    return {"httpGet": {"path": path, "port": port}, **timing}


def _shared_memory_volume(overrides: PodTemplate) -> list[KubeObject]:
    if not overrides.shm_size:
        return []
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": overrides.shm_size}}]


def _scheduling(overrides: PodTemplate) -> KubeObject:
    fields: KubeObject = {
        "nodeSelector": overrides.node_selector,
        "tolerations": overrides.tolerations,
        "affinity": overrides.affinity,
        "topologySpreadConstraints": overrides.topology_spread_constraints,
        "priorityClassName": overrides.priority_class_name,
        "schedulerName": overrides.scheduler_name,
        "runtimeClassName": overrides.runtime_class_name,
        "imagePullSecrets": [{"name": name} for name in overrides.image_pull_secrets],
        "hostIPC": overrides.host_ipc,
    }
    return {key: value for key, value in fields.items() if value}
