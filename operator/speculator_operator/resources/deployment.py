"""The Deployment of the trainer."""

from collections.abc import Mapping

from speculator_operator.api.speculator import Speculator
from speculator_operator.settings import ImageDefaults

from .configmap import TRAINER_FILES, config_hash
from .names import (
    CONFIG_DIRECTORY,
    TRACES_PORT,
    TRAINER_PORT,
    KubeObject,
    component_labels,
    owned,
    selector_labels,
)
from .pod import (
    base_env,
    container,
    fetch_container,
    http_probe,
    merge_env,
    pod_template,
    resources,
    threads_env,
    user_mounts,
)
from .target import target_mount

GRACE_SECONDS = 60
"""For a last resume checkpoint."""


def trainer_deployment(speculator: Speculator, files: Mapping[str, str], images: ImageDefaults) -> KubeObject:
    """Deployment NAME-trainer: one pod, and the old one ends before the new one starts, as two would claim versions."""
    spec = speculator.spec
    overrides = spec.trainer.pod_template
    image = spec.trainer.image or images.runtime
    target = target_mount(speculator)
    name = f"{speculator.metadata.name}-trainer"
    fetch = [fetch_container(speculator, image, "fetch-trainer.json", overrides)] if target.fetched else []
    data: KubeObject = {"persistentVolumeClaim": {"claimName": name}} if spec.trainer.storage else {"emptyDir": {}}
    template = pod_template(
        speculator,
        "trainer",
        overrides,
        config_hash(files, TRAINER_FILES),
        [{"name": "data"} | data, target.volume],
        terminationGracePeriodSeconds=GRACE_SECONDS,
        **({"initContainers": fetch} if fetch else {}),
        containers=[_trainer(speculator, image, target.mount)],
    )
    head = owned(speculator, "apps/v1", "Deployment", name, component_labels(speculator, "trainer"))
    return head | {
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector_labels(speculator, "trainer")},
            "template": template,
        }
    }


def _trainer(speculator: Speculator, image: str, target: KubeObject) -> KubeObject:
    spec = speculator.spec.trainer
    return container(
        speculator,
        "trainer",
        image,
        ["speculator-trainer", "--settings", f"{CONFIG_DIRECTORY}/trainer.json"],
        merge_env([*base_env(speculator), threads_env("trainer")], spec.pod_template.env, spec.env),
        [target, *user_mounts(spec.pod_template)],
        ports=[
            {"name": "http", "containerPort": TRAINER_PORT, "protocol": "TCP"},
            {"name": "traces", "containerPort": TRACES_PORT, "protocol": "TCP"},
        ],
        resources=resources(spec.resources),
        startupProbe=http_probe("/healthz", "http", periodSeconds=2, timeoutSeconds=10, failureThreshold=300),
        readinessProbe=http_probe("/healthz", "http", periodSeconds=5, timeoutSeconds=10, failureThreshold=3),
        livenessProbe=http_probe("/healthz", "http", periodSeconds=15, timeoutSeconds=30, failureThreshold=8),
    )
