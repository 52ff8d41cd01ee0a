"""The container `engine` for the reference engine."""

import math

from speculator_operator.api.base import seconds
from speculator_operator.api.speculator import Speculator
from speculator_operator.settings import ImageDefaults

from .names import CONFIG_DIRECTORY, ENGINE_PORT, KubeObject
from .pod import base_env, container, http_probe, merge_env, resources, threads_env, user_mounts
from .target import target_mount

ENDPOINT_SECONDS = 5
"""Between a pod's end being announced and its last new request: Services learn of it a moment later."""


def reference_engine(speculator: Speculator, images: ImageDefaults) -> KubeObject:
    """Serves on port 8000; its control API answers on the pod's loopback only.

    `/health` is asked patiently: a busy engine answers late, and a restart loses every running request.
    """
    spec = speculator.spec
    overrides = spec.serving.pod_template
    return container(
        speculator,
        "engine",
        spec.engine.image or images.runtime,
        ["speculator-engine", "--settings", f"{CONFIG_DIRECTORY}/engine.json", *spec.engine.args],
        merge_env([*base_env(speculator), threads_env("engine")], overrides.env, spec.engine.env),
        [target_mount(speculator).mount, *user_mounts(overrides)],
        ports=[{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        resources=resources(spec.serving.resources),
        startupProbe=http_probe(
            "/health",
            "http",
            periodSeconds=2,
            timeoutSeconds=10,
            failureThreshold=max(1, math.ceil(seconds(spec.serving.startup_timeout) / 2)),
        ),
        readinessProbe=http_probe("/health", "http", periodSeconds=5, timeoutSeconds=10, failureThreshold=3),
        livenessProbe=http_probe("/health", "http", periodSeconds=15, timeoutSeconds=30, failureThreshold=8),
        lifecycle={"preStop": {"sleep": {"seconds": ENDPOINT_SECONDS}}},
    )
