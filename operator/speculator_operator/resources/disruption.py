"""The PodDisruptionBudget of the engine pods."""

from speculator_operator.api.speculator import Speculator

from .names import KubeObject, component_labels, owned, selector_labels


def disruption_budget(speculator: Speculator) -> KubeObject:
    """PodDisruptionBudget NAME-engine.

    It bounds how many pods may be missing and never how many must be there: a drain of the only replica's node goes on
    instead of hanging. Pods that are not ready may always be evicted.
    """
    head = owned(
        speculator,
        "policy/v1",
        "PodDisruptionBudget",
        f"{speculator.metadata.name}-engine",
        component_labels(speculator, "engine"),
    )
    return head | {
        "spec": {
            "maxUnavailable": speculator.spec.serving.max_unavailable,
            "selector": {"matchLabels": selector_labels(speculator, "engine")},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        }
    }
