"""Settings files of our programs. They are the contracts' models, so that a wrong field fails here, not in a pod."""

import hashlib
import json
from collections.abc import Mapping

from pydantic import ValidationError

from speculator_operator.api.base import number, quantity, seconds
from speculator_operator.api.resolve import policy_sha256, publish_config, training_config
from speculator_operator.api.speculator import ReferenceEngine, Speculator
from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicySpec
from speculator_runtime.contracts.settings import (
    AgentSettings,
    DrafterSettings,
    EngineSettings,
    Settings,
    StoreSettings,
    TrainerSettings,
)

from .errors import CannotBuild
from .names import (
    AGENT_PORT,
    DATA_DIRECTORY,
    ENGINE_PORT,
    SECRETS_DIRECTORY,
    TARGET_DIRECTORY,
    TRACES_PORT,
    TRAINER_PORT,
    KubeObject,
    common_labels,
    owned,
)
from .target import fetch_settings

ENGINE_FILES = ("fetch-engine.json", "engine.json", "agent.json")
TRAINER_FILES = ("fetch-trainer.json", "trainer.json")


def settings_files(speculator: Speculator, training: TrainingPolicySpec, sync: SyncPolicySpec) -> dict[str, str]:
    """File name -> JSON text; raises CannotBuild when the spec and policies make settings that no program takes."""
    try:
        return {name: _text(settings) for name, settings in _settings(speculator, training, sync).items()}
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'all'}: {e['msg']}{_given(e['input'])}" for e in error.errors()]
        raise CannotBuild(
            "InvalidSettings", f"the spec and its policies make wrong {error.title}: " + "; ".join(lines)
        ) from error


def config_map(speculator: Speculator, files: Mapping[str, str]) -> KubeObject:
    """ConfigMap NAME-config."""
    head = owned(speculator, "v1", "ConfigMap", f"{speculator.metadata.name}-config", common_labels(speculator))
    return head | {"data": dict(files)}


def config_hash(files: Mapping[str, str], names: tuple[str, ...]) -> str:
    """sha256 over the named files that exist."""
    digest = hashlib.sha256()
    for name in names:
        if name in files:
            digest.update(f"{name}\0{files[name]}\0".encode())
    return digest.hexdigest()


def store_settings(speculator: Speculator) -> StoreSettings:
    """Where the ledger is; the prefix is NAMESPACE/NAME unless the spec says otherwise."""
    s3, meta = speculator.spec.storage.s3, speculator.metadata
    return StoreSettings(
        bucket=s3.bucket,
        prefix=s3.prefix or f"{meta.namespace}/{meta.name}",
        endpoint=s3.endpoint,
        region=s3.region,
        path_style=s3.path_style,
    )


def _settings(speculator: Speculator, training: TrainingPolicySpec, sync: SyncPolicySpec) -> dict[str, Settings]:
    store = store_settings(speculator)
    files: dict[str, Settings] = {
        "engine.json": _engine(speculator, training),
        "agent.json": _agent(speculator, training, store),
        "trainer.json": _trainer(speculator, training, sync, store),
    }
    whole, part = fetch_settings(speculator, store, "all"), fetch_settings(speculator, store, "embedding")
    if whole is not None and part is not None:
        files |= {"fetch-engine.json": whole, "fetch-trainer.json": part}
    return files


def _drafter(speculator: Speculator) -> DrafterSettings:
    drafter = speculator.spec.drafter
    if drafter.init_from and not drafter.init_from.startswith("s3://"):
        raise CannotBuild(
            "NotSupportedYet",
            f"spec.drafter.initFrom {drafter.init_from!r}: only s3:// is supported yet; copy the checkpoint there",
        )
    return DrafterSettings(
        algorithm=drafter.algorithm,
        draft_vocab_size=drafter.draft_vocab_size,
        intermediate_size=drafter.intermediate_size,
        num_attention_heads=drafter.num_attention_heads,
        num_key_value_heads=drafter.num_key_value_heads,
        init_from=drafter.init_from,
        init_seed=drafter.seed,
    )


def _engine(speculator: Speculator, training: TrainingPolicySpec) -> EngineSettings:
    spec = speculator.spec
    options = spec.engine.reference or ReferenceEngine()
    return EngineSettings(
        model=spec.target.name,
        target_directory=TARGET_DIRECTORY,
        drafter=_drafter(speculator),
        shape=spec.drafter.shape(),
        dtype=options.dtype,
        port=ENGINE_PORT,
        max_running_requests=options.max_running_requests,
        max_total_tokens=options.max_total_tokens,
        max_context=options.max_context,
        threads=options.threads,
        buckets=tuple(spec.adaptive.buckets),
        trace_top_k=training.capture.teacher_top_k,
        trace_rejected=training.capture.rejected,
        secrets_directory=SECRETS_DIRECTORY,
        drain_seconds=seconds(spec.serving.drain),
    )


def _agent(speculator: Speculator, training: TrainingPolicySpec, store: StoreSettings) -> AgentSettings:
    spec, meta = speculator.spec, speculator.metadata
    return AgentSettings(
        port=AGENT_PORT,
        engine_type=spec.engine.type,
        store=store,
        work_directory=DATA_DIRECTORY,
        trainer_endpoint=f"tcp://{meta.name}-trainer.{meta.namespace}.svc:{TRACES_PORT}",
        trace_queue_bytes=int(quantity(spec.serving.agent.trace_queue_size)),
        trace_share=number(training.capture.share),
        opt_out_default=spec.privacy.opt_out_by_default,
        secrets_directory=SECRETS_DIRECTORY,
    )


def _trainer(
    speculator: Speculator, training: TrainingPolicySpec, sync: SyncPolicySpec, store: StoreSettings
) -> TrainerSettings:
    spec = speculator.spec
    return TrainerSettings(
        model=spec.target.model,
        model_revision=spec.target.revision,
        target_embedding=TARGET_DIRECTORY,
        drafter=_drafter(speculator),
        training=training_config(training),
        publish=publish_config(sync),
        training_policy_sha256=policy_sha256(training),
        store=store,
        port=TRAINER_PORT,
        trace_bind=f"tcp://0.0.0.0:{TRACES_PORT}",
        work_directory=DATA_DIRECTORY,
        threads=spec.trainer.threads,
        secrets_directory=SECRETS_DIRECTORY,
    )


def _given(value: object) -> str:
    return f" (got {value!r})" if isinstance(value, (str, int, float)) else ""


def _text(settings: Settings) -> str:
    return json.dumps(settings.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
