"""The trainer's rounds, turned by the test: warm-up, steps, publication, directives, restarts. Real S3 server."""

import shutil
from pathlib import Path

import pytest
import torch

from speculator_runtime.contracts.settings import DrafterSettings
from speculator_runtime.contracts.trainer import TrainerDirective
from speculator_runtime.drafter.checkpoint import load_into, read_checkpoint
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.storage import Ledger
from speculator_runtime.storage import read_checkpoint as read_pointer
from speculator_runtime.training.trainer import StaleDirective
from support.s3server import S3Server


def change(settings, **fields):
    return settings.model_copy(update=fields)


def training(settings, **fields):
    return change(settings, training=settings.training.model_copy(update=fields))


def ledger_of(settings):
    return Ledger(settings.store)


def test_nothing_is_trained_before_the_warm_up(settings, by_hand):
    hand = by_hand(settings)
    hand.feed(0, 1)
    hand.turn(3)
    assert (hand.trainer.status().phase, hand.trainer.status().step) == ("WaitingForTraces", 0)
    hand.feed(2)
    hand.turn(1)
    assert (hand.trainer.status().phase, hand.trainer.status().step) == ("Training", 1)


def test_versions_are_published_with_their_provenance_and_form_a_chain(settings, by_hand, tmp_path):
    hand = by_hand(settings)
    hand.feed(*range(4))
    hand.turn(2)
    assert hand.versions == [1]
    hand.feed(*range(4, 9), draft_version=1)
    hand.turn(2)
    assert hand.versions == [1, 2]

    ledger = ledger_of(settings)
    assert ledger.verify_chain() == []
    first, second = ledger.list_versions()
    assert (first.data.requests, first.data.requests_total, first.data.domains) == (4, 4, {"code": 2, "sql": 2})
    assert (first.data.first_request, first.data.last_request) == ("request-0", "request-3")
    assert (second.data.requests, second.data.requests_total, second.data.draft_versions) == (4, 8, {1: 4})
    assert (second.parent.version, second.parent.sha256) == (1, first.sha256)
    assert (first.target.digest, first.capture_layers, first.vocabulary) == (
        "t" * 64,
        (0, 2, 3),
        "fixed-size-growing",
    )
    assert first.vocabulary_used < second.vocabulary_used <= 128
    assert first.training_policy_sha256 == "p" * 64

    ledger.fetch(2, tmp_path / "v2")
    config = hand.trainer.lineage.learner.config
    checkpoint = read_checkpoint(tmp_path / "v2", config, second.sha256)
    assert checkpoint.vocabulary.used == second.vocabulary_used
    loaded = Eagle3Drafter(config)
    load_into(loaded, checkpoint)
    assert torch.equal(loaded.fc.weight, hand.trainer.lineage.learner.drafter.fc.weight)


def test_steps_per_request_bounds_the_work(settings, by_hand):
    hand = by_hand(training(settings, steps_per_request=1.5))
    hand.feed(*range(4))
    hand.turn(20)
    assert hand.trainer.status().step == 6
    hand.feed(4, 5)
    hand.turn(20)
    assert hand.trainer.status().step == 9


def test_paused_means_no_step_and_no_version_but_traces_are_kept(settings, by_hand):
    hand = by_hand(settings)
    hand.trainer.direct(TrainerDirective(generation=1, paused=True))
    hand.feed(*range(6))
    hand.turn(5)
    status = hand.trainer.status()
    assert (status.phase, status.step, status.buffer_samples, status.directive_generation) == ("Paused", 0, 6, 1)
    hand.trainer.direct(TrainerDirective(generation=2))
    hand.turn(2)
    assert hand.trainer.status().phase == "Training"
    assert hand.versions == [1]


def test_frozen_publishing_trains_on_and_publishes_once_it_may(settings, by_hand):
    hand = by_hand(settings)
    hand.trainer.direct(TrainerDirective(generation=1, publishing_frozen=True))
    hand.feed(*range(6))
    hand.turn(5)
    assert (hand.trainer.status().step, hand.versions) == (5, [])
    hand.trainer.direct(TrainerDirective(generation=2))
    hand.turn(1)
    assert hand.versions == [1]


def test_a_directive_of_another_target_empties_the_buffer(settings, by_hand):
    hand = by_hand(settings)
    hand.feed(*range(4))
    hand.trainer.direct(TrainerDirective(generation=1, target_digest="u" * 64))
    hand.turn(1)
    assert hand.trainer.status().buffer_samples == 0
    hand.feed(*range(4, 8), target_digest="u" * 64)
    hand.turn(2)
    assert ledger_of(settings).read_manifest(1).target.digest == "u" * 64


def test_an_older_directive_is_refused_and_the_same_is_no_change(settings, by_hand):
    trainer = by_hand(settings).trainer
    trainer.direct(TrainerDirective(generation=3, paused=True))
    trainer.direct(TrainerDirective(generation=3, paused=True))
    with pytest.raises(StaleDirective, match="3 is in force"):
        trainer.direct(TrainerDirective(generation=2))
    assert trainer.directive.paused


class TestRestart:
    def test_it_goes_on_from_the_disk_and_repeats_no_version(self, settings, by_hand):
        hand = by_hand(settings)
        hand.feed(*range(5))
        hand.turn(4)
        hand.close()
        step, versions = hand.trainer.status().step, hand.versions

        again = by_hand(settings)
        assert again.trainer.lineage.learner.step == step
        again.turn(5)
        assert again.versions == versions, "nothing fresh was trained on: nothing new to publish"
        again.feed(*range(5, 12))
        again.turn(5)
        assert again.versions == [1, 2]
        assert ledger_of(settings).verify_chain() == []

    def test_it_goes_on_from_s3_when_the_disk_is_gone(self, settings, by_hand):
        hand = by_hand(settings)
        hand.feed(*range(5))
        hand.turn(4)
        hand.close()
        shutil.rmtree(Path(settings.work_directory))
        learner = hand.trainer.lineage.learner
        again = by_hand(settings).trainer.lineage
        assert (again.learner.step, again.progress.published) == (learner.step, 1)
        assert torch.equal(again.learner.drafter.fc.weight, learner.drafter.fc.weight)
        assert again.learner.tensors().keys() == learner.tensors().keys()

    def test_it_starts_from_the_newest_version_when_all_checkpoints_are_gone(self, settings, by_hand):
        hand = by_hand(settings)
        hand.feed(*range(4))
        hand.turn(2)
        assert hand.trainer.uploads.close(30)
        store = ledger_of(settings).store
        for info in store.objects("checkpoints/"):
            store.delete(info.key)
        shutil.rmtree(Path(settings.work_directory))
        again = by_hand(settings)
        lineage = again.trainer.lineage
        assert lineage.origin == "version 1"
        assert torch.equal(lineage.learner.vocabulary.tokens, hand.trainer.lineage.learner.vocabulary.tokens)
        again.feed(*range(4, 9))
        again.turn(4)
        assert ledger_of(settings).read_manifest(2).parent.version == 1
        assert ledger_of(settings).verify_chain() == []

    def test_a_version_published_after_the_checkpoint_is_the_parent_of_the_next(self, settings, by_hand):
        hand = by_hand(settings)
        hand.feed(*range(3))
        hand.turn(1)
        hand.close()
        checkpoint_before = Path(settings.work_directory) / "checkpoints"
        saved = checkpoint_before.with_name("saved")
        shutil.copytree(checkpoint_before, saved)
        hand.feed(3, 4)
        hand.turn(2)
        assert hand.versions == [1]
        # As if the process had died between the manifest and the checkpoint that follows it.
        shutil.rmtree(checkpoint_before)
        shutil.copytree(saved, checkpoint_before)

        again = by_hand(settings)
        assert again.trainer.lineage.progress.published == 1
        assert again.trainer.lineage.progress.window_requests == 0
        again.feed(*range(5, 10))
        again.turn(4)
        assert again.versions == [1, 2]
        assert ledger_of(settings).verify_chain() == []

    def test_a_claimed_number_without_a_version_is_never_used(self, settings, by_hand):
        assert ledger_of(settings).claim_version("a trainer that died") == 1
        hand = by_hand(settings)
        hand.feed(*range(4))
        hand.turn(2)
        assert hand.versions == [2]

    def test_other_drafter_settings_begin_a_new_lineage(self, settings, by_hand):
        hand = by_hand(settings)
        hand.feed(*range(4))
        hand.turn(2)
        hand.close()
        other = by_hand(change(settings, drafter=DrafterSettings(draft_vocab_size=64)))
        assert (other.trainer.lineage.learner.step, other.trainer.lineage.learner.config.draft_vocab_size) == (0, 64)
        other.feed(*range(4, 8))
        other.turn(2)
        assert other.versions == [1, 2]


def test_fine_tuning_starts_from_a_checkpoint_in_s3(settings, by_hand, s3_server: S3Server):
    hand = by_hand(settings)
    hand.feed(*range(4))
    hand.turn(2)
    prefix = f"{settings.store.prefix}/versions/000001"
    fresh = change(
        settings,
        store=settings.store.model_copy(update={"prefix": "another/one"}),
        work_directory=settings.work_directory + "-2",
        drafter=settings.drafter.model_copy(update={"init_from": f"s3://{settings.store.bucket}/{prefix}"}),
    )
    lineage = by_hand(fresh).trainer.lineage
    assert torch.equal(lineage.learner.drafter.fc.weight, hand.trainer.lineage.learner.drafter.fc.weight)
    assert (lineage.learner.step, lineage.progress.published) == (0, 0)


def test_a_store_that_is_away_stops_neither_training_nor_loses_the_version(settings, by_hand, private_s3_server):
    away = settings.store.model_copy(
        update={"endpoint": private_s3_server.endpoint, "bucket": private_s3_server.new_bucket()}
    )
    hand = by_hand(change(settings, store=away))
    hand.feed(*range(4))
    private_s3_server.stop()
    hand.turn(3)
    status = hand.trainer.status()
    assert status.step == 3
    assert status.message == "" or "could not publish" in status.message
    private_s3_server.start()
    hand.trainer._recent.publish_not_before = 0.0
    hand.turn(1)
    assert hand.versions == [1]


def test_the_checkpoint_in_s3_says_which_it_is(settings, by_hand):
    hand = by_hand(settings)
    hand.feed(*range(4))
    hand.turn(2)
    hand.close()
    pointer = read_pointer(ledger_of(settings))
    assert pointer.labels["folder"].startswith("state-0000")
    assert set(pointer.files) == {"state.json", "state.safetensors"}
