"""A batch of the reference engine over a tiny target, driven step by step without threads or sockets."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from speculator_runtime.contracts.control import DraftShape
from speculator_runtime.contracts.settings import DrafterSettings
from speculator_runtime.drafter.checkpoint import Checkpoint
from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.vocabulary import VocabularyMap
from speculator_runtime.engines.reference.batch import Batch, CaptureOptions
from speculator_runtime.engines.reference.draft import DrafterRunner
from speculator_runtime.engines.reference.sequence import Sequence
from speculator_runtime.engines.reference.target import Target
from speculator_runtime.engines.reference.tree import DraftTrees, ancestors

# What happens before a decode step: whether drafters are swapped, then target-only (None) or a shape to speculate with.
Script = list[tuple[bool, DraftShape | None]]


@dataclass
class Bench:
    """A batch with a live drafter of random weights."""

    batch: Batch
    runner: DrafterRunner
    config: DrafterConfig


def make_bench(
    target: Target, slots: int = 6, context: int = 160, seed: int = 0, capture: CaptureOptions | None = None
) -> Bench:
    """A drafter over the whole vocabulary, computing in float64."""
    config = DrafterConfig.from_target(target.config.to_dict(), DrafterSettings(draft_vocab_size=target.vocab_size))
    batch = Batch(target, slots, context, capture)
    drafter = Eagle3Drafter(config)
    drafter.reset(seed, head=target.head_weight.float(), norm=target.norm_weight.float())
    vocabulary = VocabularyMap.initial(config.vocab_size, config.draft_vocab_size)
    runner = DrafterRunner(drafter, vocabulary, target.embedding, batch.features, torch.float64)
    batch.proposer = runner
    return Bench(batch, runner, config)


def random_checkpoint(config: DrafterConfig, seed: int, used: int) -> Checkpoint:
    """Other weights, and another vocabulary map of the same size."""
    order = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(seed))[:used].tolist()
    drafter = Eagle3Drafter(config, used)
    drafter.reset(seed)
    sharpen(drafter)
    vocabulary = VocabularyMap(config.vocab_size, config.draft_vocab_size, order)
    return Checkpoint(dict(drafter.state_dict()), vocabulary, f"{seed:064x}")


def sharpen(drafter: Eagle3Drafter) -> None:
    """Weights so large that token, features, position and context all show in what is proposed.

    Freshly initialised ones are so small that a wrong token or a stale cache would change no proposal.
    """
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() == 2:
                parameter.mul_(12.0)


def serve(
    batch: Batch, sequences: list[Sequence], script: Script, prefill_rows: int, swap: Callable[[int], None]
) -> None:
    """Serve all sequences: one is admitted a step, so that they overlap at different lengths; the script repeats."""
    waiting, turn = list(sequences), 0
    while waiting or len(batch):
        if waiting and batch.prefilling is None and not batch.full:
            batch.admit(waiting.pop(0))
        batch.prefill(prefill_rows)
        swapped, shape = script[turn % len(script)]
        if swapped:
            swap(turn)
        _remove_stopped(batch)
        if batch.sequences:
            trees = None if shape is None else batch.propose(shape)
            if trees is None:
                batch.step_target_only()
            else:
                batch.step_verify(trees)
            _remove_stopped(batch)
        turn += 1


def _remove_stopped(batch: Batch) -> None:
    for finished in [s for s in batch.sequences if s.stopped]:
        batch.remove(finished)


class Oracle:
    """A drafter that knows the answers: its trees hold the true continuation up to a random depth, among others.

    How deep the true path goes, and along which branches, is drawn; so accepted prefixes of every length occur.
    """

    def __init__(self, truth: dict[int, list[int]], vocab_size: int, seed: int) -> None:
        """truth: the whole output by id(sequence)."""
        self._truth = truth
        self._vocab_size = vocab_size
        self._generator = torch.Generator().manual_seed(seed)

    def _draw(self, below: int) -> int:
        return int(torch.randint(below, (1,), generator=self._generator))

    def propose(self, sequences: list[Sequence], shape: DraftShape) -> DraftTrees:
        rows = [self._tree(s, shape) for s in sequences]
        nodes = min(len(tokens) for tokens, _, _ in rows)
        tokens = torch.tensor([t[:nodes] for t, _, _ in rows])
        parents = torch.tensor([p[:nodes] for _, p, _ in rows])
        depths = torch.tensor([d[:nodes] for _, _, d in rows])
        return DraftTrees(tokens, parents, depths, ancestors(parents, shape.steps))

    def _tree(self, sequence: Sequence, shape: DraftShape) -> tuple[list[int], list[int], list[int]]:
        future = self._truth[id(sequence)][sequence.output_length :]
        tokens, parents, depths = [sequence.tokens[-1]], [-1], [0]
        true_node, correct = 0, self._draw(shape.steps + 1)
        for depth in range(1, shape.steps + 1):
            level = [node for node in range(len(tokens)) if depths[node] == depth - 1][: shape.topk]
            next_true = -1
            for parent in level:
                place = self._draw(shape.topk)
                for branch in range(shape.topk):
                    token = self._draw(self._vocab_size)
                    if parent == true_node and branch == place and depth <= min(correct, len(future)):
                        token, next_true = future[depth - 1], len(tokens)
                    tokens.append(token)
                    parents.append(parent)
                    depths.append(depth)
            true_node = next_true
        return tokens[: shape.draft_tokens], parents[: shape.draft_tokens], depths[: shape.draft_tokens]

    def move(self, source: int, target: int, sequence: Sequence) -> None:
        pass
