"""The trainer's volume claim, if the spec asks for one."""

from speculator_operator.api.speculator import Speculator, TrainerStorage

from .names import KubeObject, component_labels, owned


def trainer_claim(speculator: Speculator, storage: TrainerStorage) -> KubeObject:
    """PersistentVolumeClaim NAME-trainer."""
    head = owned(
        speculator,
        "v1",
        "PersistentVolumeClaim",
        f"{speculator.metadata.name}-trainer",
        component_labels(speculator, "trainer"),
    )
    storage_class = {"storageClassName": storage.storage_class_name} if storage.storage_class_name else {}
    return head | {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage.size}},
            **storage_class,
        }
    }
