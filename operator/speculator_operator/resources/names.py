"""Names, labels, paths and ports of the objects of a Speculator, as `docs/contracts.md` fixes them."""

from typing import Any, Literal, TypeAlias

from speculator_operator.api.base import FIELD_MANAGER, GROUP
from speculator_operator.api.speculator import Speculator

KubeObject: TypeAlias = dict[str, Any]
Component: TypeAlias = Literal["engine", "trainer"]

CONFIG_DIRECTORY = "/etc/speculator/config"
SECRETS_DIRECTORY = "/etc/speculator/secrets"
RUN_DIRECTORY = "/run/speculator"
DATA_DIRECTORY = "/var/lib/speculator"
TARGET_DIRECTORY = "/models/target"

ENGINE_PORT = 8000
AGENT_PORT = 8070
TRAINER_PORT = 8090
TRACES_PORT = 5555

CONFIG_HASH = f"{GROUP}/config-sha256"
"""Annotation of pod templates: changed settings roll the pods."""


def common_labels(speculator: Speculator) -> dict[str, str]:
    """Labels of every object that belongs to a Speculator."""
    name = speculator.metadata.name
    return {
        "app.kubernetes.io/name": "speculator",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        f"{GROUP}/speculator": name,
    }


def component_labels(speculator: Speculator, component: Component) -> dict[str, str]:
    """Labels of the objects of one component."""
    return common_labels(speculator) | {"app.kubernetes.io/component": component}


def selector_labels(speculator: Speculator, component: Component) -> dict[str, str]:
    """Labels that select a component's pods; they never change, selectors are immutable."""
    return {f"{GROUP}/speculator": speculator.metadata.name, "app.kubernetes.io/component": component}


def owned(
    speculator: Speculator, api_version: str, kind: str, name: str, labels: dict[str, str], **metadata: Any
) -> KubeObject:
    """The head of an object that goes when the Speculator goes."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": speculator.metadata.namespace,
            "labels": labels,
            **{key: value for key, value in metadata.items() if value},
            "ownerReferences": [speculator.owner_reference],
        },
    }
