"""Drafting: the EAGLE-3 drafter's own cache, its lazy catch-up with the target, and the trees it proposes.

Row t of the drafter's cache holds the embedding of token x[t+1] with the target's features of position t. Rows are
computed when they are needed: while speculation is off nothing runs here, and after it comes on (or after a swap, which
makes all rows stale) what is missing is computed from the features the batch keeps, so many rows a step at most.

With one decoder layer a cached row depends on its token and features alone: rows of all sequences are projected in one
flat product, and attention, MLP and head run for the last row of each sequence only.
"""

from typing import Protocol

import torch
from torch import Tensor

from speculator_runtime.contracts.control import DraftShape
from speculator_runtime.drafter.checkpoint import Checkpoint, load_into
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.vocabulary import VocabularyMap

from .attention import grouped_attention, slot_mask
from .cache import SlotCache
from .sequence import Sequence
from .tree import DraftTrees, chain, select

# Rows computed in one step when sequences have to catch up: about half a decode step of SmolLM2-135M on one CPU thread,
# so that no token waits for a whole context's worth of drafter rows.
CATCH_UP_ROWS = 512
# Rows past a request's end that drafting and verifying may write: a tree of 16 levels x 16 branches.
SLACK_ROWS = 256


class DraftingFault(Exception):
    """The drafter's output cannot be used; serving goes on target-only."""


class Proposer(Protocol):
    """What proposes draft trees. Sequences are in slots first, first + 1, ... in order."""

    def propose(self, sequences: list[Sequence], shape: DraftShape) -> DraftTrees | None:
        """One tree per sequence, or None while still catching up with the sequences; raises DraftingFault."""
        ...

    def move(self, source: int, target: int, sequence: Sequence) -> None:
        """A sequence changes its slot."""
        ...


class DrafterRunner:
    """The live drafter over the batch's slots."""

    def __init__(
        self,
        drafter: Eagle3Drafter,
        vocabulary: VocabularyMap,
        embedding: Tensor,
        features: Tensor,
        dtype: torch.dtype,
    ) -> None:
        """embedding: the target's [V, H]; features: the batch's buffer [S, L, 3H]; the drafter computes in `dtype`."""
        slots, rows, _ = features.shape
        config = drafter.config
        self.drafter = drafter.to(device=embedding.device, dtype=dtype).eval().requires_grad_(False)
        self.tokens_of_slots = vocabulary.tokens.to(embedding.device).clone()
        self.generation = 0
        self._embedding = embedding
        self._dtype = dtype
        self._features = features
        self._flat_features = features.view(slots * rows, -1)
        self._cache = SlotCache(1, slots, rows, config.num_key_value_heads, config.head_dim, dtype, embedding.device)
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self._scale = config.head_dim**-0.5
        self._device = embedding.device

    def swap(self, checkpoint: Checkpoint) -> None:
        """Copy checked weights and their map into the live drafter, in place; all cached rows become stale."""
        load_into(self.drafter, checkpoint)
        self.tokens_of_slots.copy_(checkpoint.vocabulary.tokens)
        self.generation += 1

    def d2t(self) -> Tensor:
        """The live map as checkpoints hold it: target id minus draft id, int64 [Vd]."""
        return self.tokens_of_slots - torch.arange(self.tokens_of_slots.numel(), device=self._device)

    def move(self, source: int, target: int, sequence: Sequence) -> None:
        """A sequence changes its slot."""
        self._cache.move(source, target, sequence.drafted)

    def propose(self, sequences: list[Sequence], shape: DraftShape) -> DraftTrees | None:
        """One tree per sequence, all with the same number of nodes; None if this step only caught up in part."""
        for sequence in sequences:
            if sequence.drafter_generation != self.generation:
                sequence.drafter_generation, sequence.drafted = self.generation, 0
            # At least one row is computed: its output is what the first drafts come from.
            sequence.drafted = min(sequence.drafted, sequence.computed - 1)
        missing = [(s, row) for s in sequences for row in range(s.drafted, s.computed)]
        limit = max(CATCH_UP_ROWS, 2 * len(sequences) * (shape.steps + 1))
        if len(missing) > limit:
            self._project(missing[:limit])
            return None
        hidden = self._extend(sequences, missing)
        roots = torch.tensor([s.tokens[-1] for s in sequences], device=self._device)
        branches = min(shape.topk, self.drafter.used)
        if branches == 1:
            return self._chain(sequences, roots, hidden, min(shape.steps, shape.draft_tokens - 1))
        return self._tree(sequences, roots, hidden, shape, branches)

    def _project(self, rows: list[tuple[Sequence, int]]) -> tuple[Tensor, Tensor]:
        """Write keys and values of rows into the cache, ascending for each sequence.

        Returns the rows' queries [R, Nh, Dh] and hidden inputs [R, H].
        """
        capacity, device = self._cache.rows, self._device
        index = torch.tensor([s.slot * capacity + row for s, row in rows], device=device)
        tokens = torch.tensor([[s.tokens[row + 1] for s, row in rows]], device=device)
        positions = torch.tensor([[row for _, row in rows]], device=device)
        hidden = self.drafter.fuse(self._flat_features[index].to(self._dtype))
        new = self.drafter.project(self._embedding[tokens].to(self._dtype), hidden[None], positions)
        keys, values = self._cache.flat_layer(0)
        keys.index_copy_(0, index, new.key[0].transpose(0, 1))
        values.index_copy_(0, index, new.value[0].transpose(0, 1))
        for sequence, row in rows:
            sequence.drafted = row + 1
        return new.query[0].transpose(0, 1), hidden

    def _extend(self, sequences: list[Sequence], missing: list[tuple[Sequence, int]]) -> Tensor:
        """Compute all missing rows; returns the layer's output at each sequence's last row, [B, H]."""
        queries, hidden = self._project(missing)
        place = {id(sequence): i for i, (sequence, _) in enumerate(missing)}  # of its last row
        last = torch.tensor([place[id(s)] for s in sequences], device=self._device)
        lengths = [s.computed for s in sequences]
        first = sequences[0].slot
        keys, values = (t[first : first + len(sequences), : max(lengths)].transpose(1, 2) for t in self._cache.layer(0))
        one = torch.ones(1, 1, 1, dtype=torch.bool, device=self._device)
        mask = slot_mask([n - 1 for n in lengths], one, self._groups, self._dtype, self._device)
        attended = grouped_attention(queries[last][:, :, None], keys, values, mask, self._scale)
        return self.drafter.finish(attended, hidden[last][:, None])[:, 0]

    def _forward(
        self,
        sequences: list[Sequence],
        written_at: list[int],
        seen: list[int],
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        tree: Tensor,
    ) -> Tensor:
        """Rows [B, N] written at `written_at`; each sees `seen` cached rows and, of those after, what `tree` says."""
        embeds = self._embedding[tokens].to(self._dtype)
        new = self.drafter.project(embeds, hidden, positions)
        keys, values = self._cache.window(sequences[0].slot, written_at, tokens.shape[1]).update(new.key, new.value, 0)
        mask = slot_mask(seen, tree, self._groups, self._dtype, self._device)
        return self.drafter.finish(grouped_attention(new.query, keys, values, mask, self._scale), hidden)

    def _chain(self, sequences: list[Sequence], roots: Tensor, hidden: Tensor, steps: int) -> DraftTrees:
        tokens, peaks = [roots], []
        lengths = [s.computed for s in sequences]
        one = torch.ones(1, 1, 1, dtype=torch.bool, device=self._device)
        for step in range(steps):
            if step:
                positions = torch.tensor(lengths, device=self._device)[:, None]
                output = self._forward(
                    sequences, lengths, lengths, tokens[-1][:, None], hidden[:, None], positions, one
                )
                hidden = output[:, 0]
                lengths = [n + 1 for n in lengths]
            peak, slot = self.drafter.head(hidden).max(-1)
            peaks.append(peak)
            tokens.append(self.tokens_of_slots[slot])
        _check_finite(torch.stack(peaks))
        return chain(torch.stack(tokens, dim=1))

    def _tree(
        self, sequences: list[Sequence], roots: Tensor, hidden: Tensor, shape: DraftShape, branches: int
    ) -> DraftTrees:
        """As EAGLE-2: expand the `branches` best nodes of each depth, then keep the best of all that were seen."""
        batch, device = len(sequences), self._device
        scores, tokens = self._candidates(hidden[:, None], branches)
        scores, tokens = scores[:, 0], tokens[:, 0]
        pool_tokens, pool_scores = [tokens], [scores]
        pool_parents = [torch.full_like(tokens, -1)]
        depths = [1] * branches
        beam_index = torch.arange(branches, device=device).expand(batch, -1)  # of each beam among all candidates
        beam_hidden = hidden[:, None].expand(-1, branches, -1)
        visible = torch.empty(batch, branches, 0, dtype=torch.bool, device=device)
        own = torch.eye(branches, dtype=torch.bool, device=device).expand(batch, -1, -1)
        starts = [s.computed for s in sequences]
        for depth in range(2, shape.steps + 1):
            visible = torch.cat([visible, own], dim=2)
            written = [n + (depth - 2) * branches for n in starts]
            positions = torch.tensor(starts, device=device)[:, None].expand(-1, branches) + (depth - 2)
            output = self._forward(sequences, written, starts, tokens, beam_hidden, positions, visible)
            step_scores, step_tokens = self._candidates(output, branches)
            all_scores = (scores[:, :, None] + step_scores).flatten(1)
            all_tokens = step_tokens.flatten(1)
            offset = len(depths)
            pool_tokens.append(all_tokens)
            pool_scores.append(all_scores)
            pool_parents.append(beam_index.repeat_interleave(branches, dim=1))
            depths += [depth] * branches**2
            best = all_scores.sort(dim=1, descending=True, stable=True).indices[:, :branches]
            scores, tokens, beam_index = all_scores.gather(1, best), all_tokens.gather(1, best), best + offset
            parent = best // branches
            beam_hidden = output.gather(1, parent[:, :, None].expand(-1, -1, output.shape[2]))
            visible = visible.gather(1, parent[:, :, None].expand(-1, -1, visible.shape[2]))
        pool = torch.cat(pool_scores, dim=1)
        _check_finite(pool)
        depth_of = torch.tensor(depths, device=device)
        return select(roots, torch.cat(pool_tokens, 1), torch.cat(pool_parents, 1), pool, depth_of, shape.draft_tokens)

    def _candidates(self, hidden: Tensor, branches: int) -> tuple[Tensor, Tensor]:
        """Hidden [B, N, H] -> log-probabilities and target tokens of the best continuations, [B, N, branches]."""
        scores, slots = self.drafter.head(hidden).log_softmax(-1).topk(branches, dim=-1)
        return scores, self.tokens_of_slots[slots]


def _check_finite(values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise DraftingFault("the drafter's logits are not finite")
