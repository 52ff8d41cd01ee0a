"""Policies as the programs understand them: strings parsed to numbers, and a hash that names what was in force."""

import hashlib
import json

from speculator_runtime.contracts.settings import PublishConfig, TrainingConfig

from .base import ApiModel, number, quantity, seconds
from .sync_policy import SyncPolicySpec
from .training_policy import TrainingPolicySpec


def training_config(policy: TrainingPolicySpec) -> TrainingConfig:
    """The trainer's configuration from a policy; raises ValueError (pydantic) for values the trainer cannot take."""
    loss, optimizer, batch = policy.loss, policy.optimizer, policy.batch
    schedule, buffer = policy.schedule, policy.buffer
    return TrainingConfig(
        loss=loss.type,
        ttt_length=loss.ttt_length,
        ttt_decay=number(loss.ttt_decay),
        learning_rate=number(optimizer.learning_rate),
        final_learning_rate=_optional(optimizer.final_learning_rate),
        decay_steps=optimizer.decay_steps,
        warmup_steps=optimizer.warmup_steps,
        weight_decay=number(optimizer.weight_decay),
        betas=(number(optimizer.beta1), number(optimizer.beta2)),
        gradient_clip=number(optimizer.gradient_clip),
        batch_size=batch.size,
        max_fresh_per_batch=batch.max_fresh,
        max_sequence_length=batch.max_sequence_length,
        precision=policy.precision,
        warmup_requests=schedule.warmup_requests,
        steps_per_request=_optional(schedule.steps_per_request),
        buffer_bytes=int(quantity(buffer.size)),
        buffer_domain_quota=number(buffer.domain_quota),
        max_draft_versions_behind=buffer.max_draft_versions_behind,
        max_age_seconds=None if buffer.max_age is None else seconds(buffer.max_age),
        checkpoint_interval_seconds=seconds(schedule.checkpoint_interval),
        seed=policy.seed,
    )


def publish_config(policy: SyncPolicySpec) -> PublishConfig:
    """When the trainer publishes, from a policy."""
    publish = policy.publish
    return PublishConfig(
        every_requests=publish.every_requests,
        first_after_requests=publish.first_after_requests,
        first_after_steps=publish.first_after_steps,
        min_interval_seconds=seconds(publish.min_interval),
    )


def policy_sha256(spec: ApiModel) -> str:
    """Names a policy by content, defaults filled in: sha256 of its JSON with sorted keys and no spaces."""
    text = json.dumps(spec.wire(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _optional(value: str | None) -> float | None:
    return None if value is None else number(value)
