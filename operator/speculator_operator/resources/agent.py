"""The native sidecar `agent`: it starts before the engine and ends after it."""

from speculator_operator.api.speculator import Speculator
from speculator_operator.settings import ImageDefaults

from .names import AGENT_PORT, CONFIG_DIRECTORY, KubeObject
from .pod import base_env, container, http_probe, merge_env, resources

DEFAULT_RESOURCES: KubeObject = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


def agent_sidecar(speculator: Speculator, images: ImageDefaults) -> KubeObject:
    """An init container that keeps running.

    It has no startup and no readiness probe on purpose: an agent that is slow, waits for S3 or has no plan must not
    keep the engine from serving.
    """
    spec = speculator.spec
    env = [*base_env(speculator), {"name": "OMP_NUM_THREADS", "value": "1"}]
    return container(
        speculator,
        "agent",
        images.runtime,
        ["speculator-agent", "--settings", f"{CONFIG_DIRECTORY}/agent.json"],
        merge_env(env, spec.serving.pod_template.env),
        [],
        restartPolicy="Always",
        ports=[{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        resources=resources(spec.serving.agent.resources, DEFAULT_RESOURCES),
        livenessProbe=http_probe(
            "/healthz", "agent", initialDelaySeconds=30, periodSeconds=10, timeoutSeconds=10, failureThreshold=6
        ),
    )
