"""Accept length of a drafter in the reference engine's own draft-verify loop, greedy, on prompts of held-out traces."""

import copy
from functools import cache
from pathlib import Path

import torch

from speculator_runtime.contracts.control import DraftShape
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.vocabulary import VocabularyMap
from speculator_runtime.engines.reference.batch import Batch
from speculator_runtime.engines.reference.draft import DrafterRunner
from speculator_runtime.engines.reference.sequence import Sequence
from speculator_runtime.engines.reference.target import Target, load_target
from speculator_runtime.traces.codec import Trace

MAX_CONTEXT = 768


@cache
def _target(directory: Path) -> Target:
    return load_target(directory, "float32", torch.device("cpu"))[0]


def accept_lengths(
    directory: Path, drafter: Eagle3Drafter, vocabulary: VocabularyMap, held: list[Trace], chains: list[int]
) -> list[float]:
    """Tokens committed per verify step (bonus included) for chains of these lengths, over all held-out prompts."""
    target = _target(directory)
    results = []
    for steps in chains:
        committed = verified = 0
        for begin in range(0, len(held), 8):
            a, b = _decode(target, drafter, vocabulary, held[begin : begin + 8], steps)
            committed, verified = committed + a, verified + b
        results.append(committed / max(1, verified))
    return results


def _decode(target: Target, drafter, vocabulary, held: list[Trace], steps: int) -> tuple[int, int]:
    shape = DraftShape(steps=steps, topk=1, draft_tokens=steps + 1)
    batch = Batch(target, len(held) + 1, MAX_CONTEXT)
    batch.proposer = DrafterRunner(copy.deepcopy(drafter), vocabulary, target.embedding, batch.features, torch.float32)
    for trace in held:
        length = trace.header.prompt_length
        sequence = Sequence(length, trace.tensors["tokens"][:length].tolist(), trace.header.total_length - length)
        batch.admit(sequence)
        while not batch.prefill(MAX_CONTEXT):
            pass
    committed = verified = 0
    while batch.sequences:
        trees = batch.propose(shape)
        if trees is None:  # Still catching up with the prompts: no step was taken.
            continue
        for tokens in batch.step_verify(trees):
            committed, verified = committed + len(tokens), verified + 1
        for sequence in [s for s in batch.sequences if s.stopped]:
            batch.remove(sequence)
    return committed, verified
