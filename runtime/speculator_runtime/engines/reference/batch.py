"""The running batch: prefill, target-only steps and verify steps over the slots, with what they commit.

Single-threaded and without clocks: the scheduler decides what runs when. A step leaves every sequence with
`computed == len(tokens) - 1`: the last token has been chosen but not yet run through the target.

Lossless by construction: every committed token is the target's own choice on the row before it (greedy, or the draw of
`sampling`), and rows of rejected drafts are never seen again.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from speculator_runtime.contracts.control import DraftShape

from .cache import lazy_zeros
from .draft import SLACK_ROWS, Proposer
from .sampling import sample
from .sequence import RejectedNodes, Sequence
from .target import Target
from .teacher import teacher_rows
from .tree import DraftTrees, Walk, chain, walk


@dataclass(frozen=True)
class CaptureOptions:
    """What is kept of each step for traces."""

    top_k: int
    rejected: bool


class Batch:
    """Sequences in slots 0..B-1 that decode together, and at most one more, in slot B, that is being prefilled."""

    def __init__(self, target: Target, slots: int, max_context: int, capture: CaptureOptions | None = None) -> None:
        self.target = target
        self.rows = max_context + SLACK_ROWS
        self.sequences: list[Sequence] = []
        self.prefilling: Sequence | None = None
        self.proposer: Proposer | None = None
        self._capture = capture
        self._slots = slots
        self._cache = target.cache(slots, self.rows)
        # Features of every committed row: the drafter catches up from them, and traces are made of them.
        self.features = lazy_zeros((slots, self.rows, 3 * target.hidden_size), target.dtype, target.device)
        self._flat_features = self.features.view(slots * self.rows, -1)
        self._root = torch.zeros(1, 1, dtype=torch.int64, device=target.device)
        self._one = torch.ones(1, 1, 1, dtype=torch.bool, device=target.device)

    def __len__(self) -> int:
        return len(self.sequences) + (self.prefilling is not None)

    @property
    def full(self) -> bool:
        """Whether every slot is taken."""
        return len(self) >= self._slots

    def admit(self, sequence: Sequence) -> None:
        """Give a new sequence the next slot; it joins the decoding batch once its prompt is computed."""
        if self.full or self.prefilling is not None:
            raise RuntimeError("admit() on a full batch or during another prefill; this is a bug in the scheduler")
        sequence.slot = len(self.sequences)
        self.prefilling = sequence

    @torch.inference_mode()
    def prefill(self, max_rows: int) -> list[int]:
        """Compute up to `max_rows` of the prompt being prefilled; returns [first token] when it is done, else []."""
        sequence = self.prefilling
        if sequence is None:
            return []
        start = sequence.computed
        rows = min(max_rows, sequence.prompt_length - start)
        tokens = torch.tensor([sequence.tokens[start : start + rows]], device=self.target.device)
        order = chain(tokens)
        out = self.target.forward(self._cache, sequence.slot, [start], tokens, order.depths, order.visible)
        self.features[sequence.slot, start : start + rows] = out.features[0]
        sequence.computed += rows
        if sequence.computed < sequence.prompt_length:
            return []
        logits = self.target.logits(out.hidden[:, -1:])[0]
        self._keep_teacher(sequence, logits, sequence.prompt_length - 1)
        taken = sequence.commit([sample(logits[0], sequence.params, 0)])
        self.prefilling = None
        self.sequences.append(sequence)
        return taken

    @torch.inference_mode()
    def step_target_only(self) -> list[list[int]]:
        """One token for every sequence; returns what was committed for each."""
        sequences = self.sequences
        tokens = torch.tensor([[s.tokens[-1]] for s in sequences], device=self.target.device)
        return self._verify(DraftTrees(tokens, self._root - 1, self._root, self._one))

    @torch.inference_mode()
    def propose(self, shape: DraftShape) -> DraftTrees | None:
        """Trees from the proposer (None: not yet); whatever it raises has changed nothing that is committed."""
        if self.proposer is None:
            raise RuntimeError("there is no proposer; this is a bug in the scheduler")
        return self.proposer.propose(self.sequences, shape)

    @torch.inference_mode()
    def step_verify(self, trees: DraftTrees) -> list[list[int]]:
        """One verify step over proposed trees; returns what was committed for each sequence."""
        committed = self._verify(trees)
        for sequence, tokens in zip(self.sequences, committed, strict=True):
            sequence.verify_steps += 1
            sequence.drafts_proposed += trees.nodes - 1
            sequence.drafts_accepted += len(tokens) - 1
        return committed

    def _verify(self, trees: DraftTrees) -> list[list[int]]:
        sequences = self.sequences
        starts = [s.computed for s in sequences]
        out = self.target.forward(self._cache, 0, starts, trees.tokens, trees.depths, trees.visible)
        logits = self.target.logits(out.hidden)
        best = greedy_tokens(logits).tolist() if all(s.params.greedy for s in sequences) else None
        tokens = trees.tokens.tolist()
        parents = trees.parents.expand_as(trees.tokens).tolist()
        committed: list[list[int]] = []
        walks: list[Walk] = []
        for i, sequence in enumerate(sequences):
            row, first, params = logits[i], sequence.output_length, sequence.params

            def choose(node: int, depth: int, i: int = i) -> int:
                return best[i][node] if best is not None else sample(row[node], params, first + depth)  # noqa: B023

            walks.append(walk(tokens[i], parents[i], choose))
        self._keep_rows(starts, walks, out.features)
        for i, (sequence, found) in enumerate(zip(sequences, walks, strict=True)):
            if sequence.capture:
                path = found.path
                rows = logits[i] if len(path) == trees.nodes else logits[i, path]
                self._keep_teacher(sequence, rows, starts[i])
                if self._capture is not None and self._capture.rejected and len(path) < trees.nodes:
                    self._keep_rejected(sequence, tokens[i], parents[i], trees, i, found, out.features[i], logits[i])
            sequence.computed += len(found.path)
            committed.append(sequence.commit(found.tokens))
        return committed

    def _keep_rows(self, starts: list[int], walks: list[Walk], features: Tensor) -> None:
        """Make the rows of each path contiguous in the cache and keep their features."""
        moved_from: list[int] = []
        moved_to: list[int] = []
        source: list[int] = []
        target: list[int] = []
        nodes = features.shape[1]
        for slot, (start, found) in enumerate(zip(starts, walks, strict=True)):
            base = slot * self.rows + start
            for place, node in enumerate(found.path):
                source.append(slot * nodes + node)
                target.append(base + place)
                if node != place:
                    moved_from.append(base + node)
                    moved_to.append(base + place)
        if moved_from:
            self._cache.gather_rows(moved_from, moved_to)
        rows = features.flatten(0, 1)
        if len(source) < rows.shape[0]:
            rows = rows[source]
        self._flat_features.index_copy_(0, torch.tensor(target, device=rows.device), rows)

    def _keep_teacher(self, sequence: Sequence, logits: Tensor, first: int) -> None:
        if sequence.capture and self._capture is not None:
            sequence.teacher.append(teacher_rows(logits, self._capture.top_k, first))

    def _keep_rejected(
        self,
        sequence: Sequence,
        tokens: list[int],
        parents: list[int],
        trees: DraftTrees,
        index: int,
        found: Walk,
        features: Tensor,
        logits: Tensor,
    ) -> None:
        if self._capture is None:
            return
        on_path = set(found.path)
        rejected = [node for node in range(trees.nodes) if node not in on_path]
        place = {node: i for i, node in enumerate(rejected)}
        depths = trees.depths.expand_as(trees.tokens)[index].tolist()
        sequence.rejected.append(
            RejectedNodes(
                step=sequence.verify_steps,
                positions=[sequence.computed + depths[node] for node in rejected],
                parents=[place.get(parents[node], -1) for node in rejected],
                tokens=[tokens[node] for node in rejected],
                features=features[rejected],
                teacher=teacher_rows(logits[rejected], self._capture.top_k, 0),
            )
        )

    @torch.inference_mode()
    def remove(self, sequence: Sequence) -> None:
        """Free a sequence's slot: the last one moves into the gap, so that slots stay without holes."""
        if sequence is self.prefilling:
            self.prefilling = None
        else:
            last = self.sequences.pop()
            if last is not sequence:
                self.sequences[sequence.slot] = last
                self._move(last, sequence.slot)
            if self.prefilling is not None:
                self._move(self.prefilling, len(self.sequences))
        sequence.slot = -1

    def _move(self, sequence: Sequence, slot: int) -> None:
        self._cache.move(sequence.slot, slot, sequence.computed)
        self.features[slot, : sequence.computed] = self.features[sequence.slot, : sequence.computed]
        if self.proposer is not None:
            self.proposer.move(sequence.slot, slot, sequence)
        sequence.slot = slot


def greedy_tokens(logits: Tensor) -> Tensor:
    """argmax over the last dimension, lowest id first among equals; [..., V] -> [...].

    In two stages where V allows it: the largest of each block by a vectorised maximum, then the place within the block.
    torch's own argmax takes 80 to 200 us per row of 49,152 on a CPU, this one about a quarter.
    """
    size = logits.shape[-1]
    block = next((b for b in (128, 96, 64) if size % b == 0 and size >= 16 * b), None)
    if block is None or logits.device.type != "cpu":
        return logits.argmax(-1)
    blocks = logits.view(*logits.shape[:-1], size // block, block)
    where = blocks.amax(-1).argmax(-1, keepdim=True)
    within = blocks.gather(-2, where[..., None].expand(*where.shape, block)).squeeze(-2).argmax(-1, keepdim=True)
    result: Tensor = (where * block + within).squeeze(-1)
    return result
