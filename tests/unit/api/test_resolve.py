"""Policies as the programs get them."""

import pytest

from speculator_operator.api.resolve import policy_sha256, publish_config, training_config
from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicySpec
from speculator_runtime.contracts.settings import PublishConfig, TrainingConfig


def test_the_defaults_of_policies_are_the_defaults_of_programs() -> None:
    assert training_config(TrainingPolicySpec()) == TrainingConfig()
    assert publish_config(SyncPolicySpec()) == PublishConfig()


def test_every_setting_of_the_trainer_can_be_set_by_a_policy() -> None:
    policy = TrainingPolicySpec.model_validate(
        {
            "loss": {"type": "ReverseKL", "tttLength": 3, "tttDecay": "0.5"},
            "optimizer": {
                "learningRate": "0.001",
                "finalLearningRate": "0.0002",
                "decaySteps": 900,
                "warmupSteps": 10,
                "weightDecay": "0.01",
                "beta1": "0.8",
                "beta2": "0.99",
                "gradientClip": "1",
            },
            "batch": {"size": 4, "maxFresh": 2, "maxSequenceLength": 256},
            "schedule": {"warmupRequests": 4, "stepsPerRequest": "2.5", "checkpointInterval": "30s"},
            "precision": "float32",
            "buffer": {
                "size": "64Mi",
                "domainQuota": "0.25",
                "maxDraftVersionsBehind": 3,
                "maxAge": "1h",
            },
            "seed": 7,
        }
    )
    config = training_config(policy)
    assert config == TrainingConfig(
        loss="ReverseKL",
        ttt_length=3,
        ttt_decay=0.5,
        learning_rate=0.001,
        final_learning_rate=0.0002,
        decay_steps=900,
        warmup_steps=10,
        weight_decay=0.01,
        betas=(0.8, 0.99),
        gradient_clip=1,
        batch_size=4,
        max_fresh_per_batch=2,
        max_sequence_length=256,
        precision="float32",
        warmup_requests=4,
        steps_per_request=2.5,
        buffer_bytes=64 << 20,
        buffer_domain_quota=0.25,
        max_draft_versions_behind=3,
        max_age_seconds=3600,
        checkpoint_interval_seconds=30,
        seed=7,
    )
    untouched = [name for name, value in TrainingConfig().model_dump().items() if getattr(config, name) == value]
    assert untouched == []


def test_publishing_is_the_sync_policy_s() -> None:
    policy = SyncPolicySpec.model_validate(
        {"publish": {"everyRequests": 5, "firstAfterRequests": 9, "firstAfterSteps": 3, "minInterval": "1m30s"}}
    )
    assert publish_config(policy) == PublishConfig(
        every_requests=5, first_after_requests=9, first_after_steps=3, min_interval_seconds=90
    )


def test_a_policy_is_named_by_what_is_in_force_not_by_how_it_was_written() -> None:
    written_out = TrainingPolicySpec.model_validate({"loss": {"tttLength": 5}})
    other = TrainingPolicySpec.model_validate({"loss": {"tttLength": 4}})
    assert policy_sha256(written_out) == policy_sha256(TrainingPolicySpec())
    assert policy_sha256(other) != policy_sha256(TrainingPolicySpec())


@pytest.mark.parametrize("size", ["1Ki", "0"])
def test_a_buffer_too_small_for_the_trainer_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match="buffer_bytes"):
        training_config(TrainingPolicySpec.model_validate({"buffer": {"size": size}}))
