"""One optimiser step at a time: it learns, keeps the map, leaves bad updates out, and goes on bit for bit."""

import copy

import pytest
import torch

from speculator_runtime.contracts.settings import TrainingConfig
from speculator_runtime.drafter.checkpoint import read_checkpoint, save_checkpoint
from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.training.learner import Learner
from speculator_runtime.training.resume import ResumeState, read_state, write_state
from speculator_runtime.training.sample import from_trace
from speculator_runtime.training.target import TargetTensors

TRAINING = TrainingConfig(
    ttt_length=3, learning_rate=3e-3, warmup_steps=2, batch_size=4, precision="float32", final_learning_rate=1e-3,
    decay_steps=50,
)  # fmt: skip


@pytest.fixture
def target():
    generator = torch.Generator().manual_seed(1)
    return TargetTensors(
        {}, torch.randn(50, 16, generator=generator), torch.ones(16), torch.randn(50, 16, generator=generator)
    )


@pytest.fixture
def growing(config):
    return DrafterConfig(**{**vars(config), "draft_vocab_size": 20, "eos_token_ids": (0,)})


@pytest.fixture
def samples(make_trace):
    return [from_trace(make_trace(seed=i, prompt=4, total=14), 99) for i in range(12)]


def make(config, target, training=TRAINING, start=None):
    return Learner(config, training, target, seed=5, start=start)


def batches(samples):
    return [[samples[(4 * i + j) % len(samples)] for j in range(4)] for i in range(10)]


def weights(learner):
    return {name: p.detach().clone() for name, p in learner.drafter.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_it_learns(config, target, samples):
    learner = make(config, target)
    losses = [learner.learn(batch).loss for _ in range(6) for batch in batches(samples)]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


@pytest.mark.parametrize("loss", ["ForwardKL", "ReverseKL", "ReverseKLNextToken"])
def test_every_loss_goes_down(config, target, samples, loss):
    learner = make(config, target, TRAINING.model_copy(update={"loss": loss}))
    losses = [learner.learn(batch).loss for _ in range(4) for batch in batches(samples)]
    assert sum(losses[-10:]) < sum(losses[:10])


def test_a_resumed_learner_continues_bit_for_bit(growing, target, samples, tmp_path):
    def observe(learner, part):
        for sample in part:
            learner.observe(sample.output)

    straight = make(growing, target)
    observe(straight, samples[:6])
    first, second = batches(samples)[:5], batches(samples)[5:]
    for batch in first:
        straight.learn(batch)
    observe(straight, samples[6:])
    folder = write_state(tmp_path, ResumeState(1, straight.tensors(), straight.scalars()))
    expected = [straight.learn(batch) for batch in second]

    resumed = make(growing, target)
    state = read_state(folder)
    resumed.restore(state.tensors, state.scalars)
    assert [resumed.learn(batch) for batch in second] == expected
    assert same(weights(resumed), weights(straight))
    assert torch.equal(resumed.vocabulary.tokens, straight.vocabulary.tokens)


def test_micro_batches_give_the_same_step_as_one_batch(config, target, samples, monkeypatch):
    whole, parts = make(config, target), make(config, target)
    report = whole.learn(samples[:4])
    monkeypatch.setattr("speculator_runtime.training.learner._MICRO_BATCH_ROWS", 20)
    split = parts.learn(samples[:4])
    assert split.loss == pytest.approx(report.loss, rel=1e-5)
    assert split.gradient_norm == pytest.approx(report.gradient_norm, rel=1e-4)


def test_an_update_that_is_not_finite_is_left_out_and_training_goes_on(config, target, samples):
    learner = make(config, target)
    learner.learn(samples[:4])
    before = weights(learner)
    poisoned = copy.deepcopy(samples[4])
    poisoned.hidden[2, 3] = float("nan")
    report = learner.learn([poisoned, *samples[5:8]])
    assert not report.applied
    assert learner.guard.skipped == 1
    assert same(weights(learner), before)
    assert learner.learn(samples[:4]).applied
    assert not same(weights(learner), before)


def test_a_batch_with_nothing_to_supervise_changes_nothing(growing, target, make_trace):
    learner = make(growing, target)
    sample = from_trace(make_trace(prompt=4, total=6), 99)
    sample.teacher_ids[:] = torch.arange(1, 7)  # No slot has been filled: only token 0 is in the vocabulary.
    report = learner.learn([sample])
    assert (report.applied, report.rows, learner.guard.skipped) == (False, 0, 0)


def test_tokens_that_appear_get_slots_whose_rows_start_from_the_targets_head(growing, target, samples):
    learner = make(growing, target)
    assert learner.vocabulary.used == 1
    learner.observe(torch.tensor([7, 7, 3, 9, 3, 7]))
    filled = learner.grow_vocabulary()
    assert learner.vocabulary.tokens[filled.start : filled.stop].tolist() == [7, 3, 9]
    assert torch.equal(learner.drafter.lm_head.weight[1:4], target.head[[7, 3, 9]])
    assert learner.drafter.used == 4


def test_growing_leaves_the_optimiser_of_used_slots_alone(growing, target, samples):
    grown, plain = make(growing, target), make(growing, target)
    for learner in (grown, plain):
        learner.observe(samples[0].output)
        learner.learn(samples[:4])
    rows = slice(0, grown.vocabulary.used)
    grown.observe(samples[1].output)
    grown.grow_vocabulary()
    assert torch.equal(grown.drafter.lm_head.weight[rows], plain.drafter.lm_head.weight[rows])


def test_fine_tuning_keeps_the_map_of_the_drafter_it_starts_from(growing, target, samples, tmp_path):
    first = make(growing, target)
    first.observe(samples[0].output)
    first.learn(samples[:4])
    save_checkpoint(tmp_path, first.drafter, first.vocabulary)
    second = make(growing, target, start=read_checkpoint(tmp_path, growing))
    assert torch.equal(second.vocabulary.tokens, first.vocabulary.tokens)
    for name, value in weights(first).items():
        rows = slice(0, first.vocabulary.used) if name == "lm_head.weight" else slice(None)
        assert torch.equal(weights(second)[name][rows], value[rows]), name


def test_a_state_of_another_shape_is_refused(config, growing, target):
    with pytest.raises(RuntimeError, match="lm_head"):
        make(config, target).restore(make(growing, target).tensors(), make(growing, target).scalars())
