"""All objects of a Speculator, in the order in which they should be applied."""

import os
from collections.abc import Callable, Mapping

from speculator_operator.api.speculator import Speculator
from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicySpec
from speculator_operator.settings import ImageDefaults

from .claim import trainer_claim
from .configmap import config_map, settings_files
from .deployment import trainer_deployment
from .disruption import disruption_budget
from .errors import CannotBuild
from .names import KubeObject
from .secret import tokens_secret
from .service import engine_headless_service, engine_service, trainer_service
from .serviceaccount import service_account
from .statefulset import engine_statefulset
from .tokens import fill_tokens


def build_objects(
    speculator: Speculator,
    training: TrainingPolicySpec | None,
    sync: SyncPolicySpec | None,
    tokens: Mapping[str, str],
    images: ImageDefaults,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> tuple[list[KubeObject], dict[str, str]]:
    """The objects, and the tokens in them: those given, with what was missing made from `random_bytes`.

    Raises CannotBuild, also when a policy is None because it cannot be resolved: the caller then leaves the objects
    that exist as they are. To go on with default policies would restart engine and trainer under settings that nobody
    asked for.
    """
    if training is None or sync is None:
        missing = "trainingPolicyRef" if training is None else "syncPolicyRef"
        raise CannotBuild(
            "PolicyUnresolved", f"spec.{missing} cannot be resolved; objects stay as they are until it can"
        )
    files = settings_files(speculator, training, sync)
    filled = fill_tokens(tokens, random_bytes)
    storage = speculator.spec.trainer.storage
    objects = [
        service_account(speculator, "engine"),
        service_account(speculator, "trainer"),
        tokens_secret(speculator, filled),
        config_map(speculator, files),
        *([trainer_claim(speculator, storage)] if storage else []),
        engine_headless_service(speculator),
        engine_service(speculator),
        trainer_service(speculator),
        disruption_budget(speculator),
        trainer_deployment(speculator, files, images),
        engine_statefulset(speculator, files, images),
    ]
    return objects, filled
