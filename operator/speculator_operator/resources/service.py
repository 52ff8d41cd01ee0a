"""Services: to ready engines, to each engine by name, and to the trainer."""

from typing import Any

from speculator_operator.api.speculator import Speculator

from .names import (
    AGENT_PORT,
    ENGINE_PORT,
    TRACES_PORT,
    TRAINER_PORT,
    Component,
    KubeObject,
    component_labels,
    owned,
    selector_labels,
)


def engine_service(speculator: Speculator) -> KubeObject:
    """Service NAME: what clients of the model use."""
    wanted = speculator.spec.serving.service
    return _service(
        speculator,
        "engine",
        speculator.metadata.name,
        [_port("http", wanted.port, "http")],
        annotations=dict(wanted.annotations),
        type=wanted.type,
    )


def engine_headless_service(speculator: Speculator) -> KubeObject:
    """Service NAME-engine of the StatefulSet: every pod has a name, ready or not."""
    return _service(
        speculator,
        "engine",
        f"{speculator.metadata.name}-engine",
        [_port("http", ENGINE_PORT, "http"), _port("agent", AGENT_PORT, "agent")],
        clusterIP="None",
        publishNotReadyAddresses=True,
    )


def trainer_service(speculator: Speculator) -> KubeObject:
    """Service NAME-trainer: its API, and where agents send traces."""
    return _service(
        speculator,
        "trainer",
        f"{speculator.metadata.name}-trainer",
        [_port("http", TRAINER_PORT, "http"), _port("traces", TRACES_PORT, "traces")],
        type="ClusterIP",
    )


def _service(
    speculator: Speculator,
    component: Component,
    name: str,
    ports: list[KubeObject],
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> KubeObject:
    labels = component_labels(speculator, component)
    head = owned(speculator, "v1", "Service", name, labels, annotations=annotations)
    return head | {"spec": spec | {"selector": selector_labels(speculator, component), "ports": ports}}


def _port(name: str, port: int, target: str) -> KubeObject:
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP"}
