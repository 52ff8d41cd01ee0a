"""ServiceAccounts of the pods: no rights at the API server, and no token in the pod."""

from speculator_operator.api.speculator import Speculator

from .names import Component, KubeObject, component_labels, owned


def service_account(speculator: Speculator, component: Component) -> KubeObject:
    """ServiceAccount NAME-engine or NAME-trainer; annotations tie it to an identity that may use the bucket."""
    head = owned(
        speculator,
        "v1",
        "ServiceAccount",
        f"{speculator.metadata.name}-{component}",
        component_labels(speculator, component),
        annotations=dict(speculator.spec.storage.s3.identity_annotations),
    )
    return head | {"automountServiceAccountToken": False}
