"""The StatefulSet of the engine pods."""

import math
from collections.abc import Callable, Mapping

from speculator_operator.api.base import seconds
from speculator_operator.api.speculator import Speculator
from speculator_operator.settings import ImageDefaults

from .agent import agent_sidecar
from .configmap import ENGINE_FILES, config_hash
from .engine_reference import ENDPOINT_SECONDS, reference_engine
from .errors import CannotBuild
from .names import KubeObject, component_labels, owned, selector_labels
from .pod import fetch_container, pod_template
from .target import target_mount

ENGINES: Mapping[str, Callable[[Speculator, ImageDefaults], KubeObject]] = {"reference": reference_engine}
"""Builders of the container `engine` by spec.engine.type."""

END_SECONDS = 15
"""For an engine to end after it has drained."""


def engine_statefulset(speculator: Speculator, files: Mapping[str, str], images: ImageDefaults) -> KubeObject:
    """StatefulSet NAME-engine; raises CannotBuild for an engine that has no builder yet.

    An update takes an old pod away before it makes the new one: with no spare GPU a surge would wait for ever. Pods are
    managed in parallel, so that one broken pod neither holds up the others nor the way back to a working revision.
    """
    spec = speculator.spec
    if spec.engine.type not in ENGINES:
        raise CannotBuild(
            "NotSupportedYet",
            f"spec.engine.type {spec.engine.type!r} is not supported by this release; use one of {sorted(ENGINES)}",
        )
    target = target_mount(speculator)
    fetch = (
        [fetch_container(speculator, images.runtime, "fetch-engine.json", spec.serving.pod_template)]
        if target.fetched
        else []
    )
    template = pod_template(
        speculator,
        "engine",
        spec.serving.pod_template,
        config_hash(files, ENGINE_FILES),
        [{"name": "data", "emptyDir": {}}, target.volume],
        terminationGracePeriodSeconds=math.ceil(ENDPOINT_SECONDS + seconds(spec.serving.drain) + END_SECONDS),
        initContainers=[*fetch, agent_sidecar(speculator, images)],
        containers=[ENGINES[spec.engine.type](speculator, images)],
    )
    name = f"{speculator.metadata.name}-engine"
    head = owned(speculator, "apps/v1", "StatefulSet", name, component_labels(speculator, "engine"))
    unavailable = spec.serving.max_unavailable
    rolling = {"rollingUpdate": {"maxUnavailable": unavailable}} if unavailable > 1 else {}
    return head | {
        "spec": {
            "replicas": spec.serving.replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", **rolling},
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector_labels(speculator, "engine")},
            "template": template,
        }
    }
