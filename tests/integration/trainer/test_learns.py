"""The whole way on a tiny target: its own answers, training, export, and the engine's draft-verify loop."""

from pathlib import Path

import pytest
import torch

from speculator_runtime.contracts.control import DraftShape
from speculator_runtime.contracts.settings import DrafterSettings, TrainingConfig
from speculator_runtime.contracts.trace import TraceHeader
from speculator_runtime.drafter.checkpoint import load_into, read_checkpoint, save_checkpoint
from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.vocabulary import VocabularyMap
from speculator_runtime.engines.reference.batch import Batch, CaptureOptions
from speculator_runtime.engines.reference.draft import DrafterRunner
from speculator_runtime.engines.reference.sequence import Sequence
from speculator_runtime.engines.reference.target import load_target
from speculator_runtime.traces.codec import Trace
from speculator_runtime.training.learner import Learner
from speculator_runtime.training.sample import from_trace
from speculator_runtime.training.target import load_target_tensors
from support.tiny_target import make_tiny_target

PROMPTS, ANSWER, STEPS = 8, 24, 3


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """Weights so large that the outputs are sharp: of a flat distribution nobody could learn the argmax."""
    return make_tiny_target(tmp_path_factory.mktemp("sharp"), layers=4, hidden=32, vocab=320, scale=0.8)


@pytest.fixture(scope="module")
def engine_target(target: Path):
    torch.set_num_threads(1)
    return load_target(target, "float32", torch.device("cpu"))[0]


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, 320, (6,), generator=generator).tolist() for _ in range(PROMPTS)]


def run(target, proposer=None) -> tuple[Batch, list[Sequence], int]:
    """All prompts in one batch, target-only or with chains of 3; returns batch, requests, and decode steps in all."""
    batch = Batch(target, PROMPTS, 64, CaptureOptions(top_k=32, rejected=False))
    if proposer is not None:
        batch.proposer = proposer(batch)
    for tokens in prompts():
        batch.admit(Sequence(len(tokens), list(tokens), ANSWER, capture=True))
        while not batch.prefill(64):
            pass
    requests, steps = list(batch.sequences), 0
    shape = DraftShape(steps=STEPS, topk=1, draft_tokens=STEPS + 1)
    while not all(s.stopped for s in requests):
        if proposer is None:
            steps += len(batch.sequences)
            batch.step_target_only()
            continue
        trees = batch.propose(shape)
        if trees is None:  # Still catching up with the prompts: no step was taken.
            continue
        steps += len(batch.sequences)
        batch.step_verify(trees)
        for sequence in [s for s in batch.sequences if s.stopped]:
            batch.remove(sequence)
    return batch, requests, steps


def traces(target, batch: Batch) -> list[Trace]:
    result = []
    for i, sequence in enumerate(batch.sequences):
        total = len(sequence.tokens)
        rows = sequence.computed
        kept = sequence.teacher
        positions = torch.cat([torch.arange(part.first, part.first + len(part.lse)) for part in kept])
        header = TraceHeader(
            request_id=str(i),
            prompt_length=sequence.prompt_length,
            total_length=total,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            capture_layers=target.capture_layers,
            draft_version=0,
            target_digest=target.digest,
            mode="TargetOnly",
            arrived=0.0,
            finished=0.0,
        )
        tensors = {
            "tokens": torch.tensor(sequence.tokens, dtype=torch.int32),
            "hidden_rows": torch.arange(rows, dtype=torch.int32),
            "hidden": batch.features[sequence.slot, :rows].clone(),
            "teacher_rows": positions.int(),
            "teacher_ids": torch.cat([part.ids for part in kept]),
            "teacher_logits": torch.cat([part.logits for part in kept]),
            "teacher_lse": torch.cat([part.lse for part in kept]),
        }
        result.append(Trace(header, tensors))
    return result


def test_a_drafter_overfits_a_tiny_targets_answers_and_the_engine_accepts_its_drafts(target, engine_target, tmp_path):
    batch, plain, _ = run(engine_target)
    ends = load_target_tensors(target)
    config = DrafterConfig.from_target(ends.config, DrafterSettings(draft_vocab_size=200, intermediate_size=256))
    training = TrainingConfig(
        ttt_length=STEPS,
        learning_rate=1e-2,
        final_learning_rate=1e-3,
        decay_steps=160,
        warmup_steps=5,
        batch_size=8,
        precision="float32",
        gradient_clip=5.0,
    )
    learner = Learner(config, training, ends, seed=0)
    samples = [from_trace(trace, 64) for trace in traces(engine_target, batch)]
    for sample in samples:
        learner.observe(sample.output)
    for _ in range(160):
        report = learner.learn(samples)
    assert report.accept_length > 3.0

    save_checkpoint(tmp_path, learner.drafter, learner.vocabulary)
    checkpoint = read_checkpoint(tmp_path, config)

    def proposer(batch: Batch) -> DrafterRunner:
        drafter = Eagle3Drafter(config)
        load_into(drafter, checkpoint)
        return DrafterRunner(drafter, checkpoint.vocabulary, engine_target.embedding, batch.features, torch.float32)

    _, drafted, steps = run(engine_target, proposer)
    assert [s.tokens for s in drafted] == [s.tokens for s in plain], "drafting is lossless"
    accept_length = sum(s.output_length - 1 for s in drafted) / steps
    assert accept_length > 2.5, f"tokens per verify step, bonus included: {accept_length:.2f} of at most {STEPS + 1}"


def test_an_untrained_drafter_has_hardly_anything_accepted(engine_target, target):
    """What the test above would measure without training."""
    config = DrafterConfig.from_target(load_target_tensors(target).config, DrafterSettings(draft_vocab_size=320))

    def proposer(batch: Batch) -> DrafterRunner:
        drafter = Eagle3Drafter(config)
        drafter.reset(seed=0)
        return DrafterRunner(
            drafter, VocabularyMap.initial(320, 320), engine_target.embedding, batch.features, torch.float32
        )

    _, drafted, steps = run(engine_target, proposer)
    assert sum(s.output_length - 1 for s in drafted) / steps < 1.3
