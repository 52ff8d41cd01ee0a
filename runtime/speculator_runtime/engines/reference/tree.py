"""Draft trees: choosing the nodes to verify, and walking them with what the target chose. Pure; no model here.

A tree has N nodes; node 0 is the root, the last committed token. Parents come before their children.
Sizes: B sequences, K candidates a sequence, D depth.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftTrees:
    """One tree per sequence of a batch, all with N nodes."""

    tokens: Tensor  # int64 [B, N]
    parents: Tensor  # int64 [B or 1, N]; -1 at the root
    depths: Tensor  # int64 [B or 1, N]; 0 at the root
    visible: Tensor  # bool [B or 1, N, N]; a node sees itself and its ancestors

    @property
    def nodes(self) -> int:
        """N."""
        return self.tokens.shape[1]


def chain(tokens: Tensor) -> DraftTrees:
    """Trees without branches: tokens int64 [B, N], the root first."""
    nodes = tokens.shape[1]
    order = torch.arange(nodes, device=tokens.device)[None]
    return DraftTrees(
        tokens, order - 1, order, torch.ones(1, nodes, nodes, dtype=torch.bool, device=tokens.device).tril()
    )


def select(roots: Tensor, tokens: Tensor, parents: Tensor, scores: Tensor, depths: Tensor, nodes: int) -> DraftTrees:
    """The `nodes - 1` candidates with the largest cumulative log-probability, under the root.

    roots: int64 [B]. tokens, parents, scores: [B, K]; a parent is an index below its child's among the K candidates,
    -1 for the root. depths: int64 [K], 1 for the root's children. A child's score is never above its parent's, so the
    choice is closed under parents; ties go to the lower index, which is the parent.
    """
    batch, count = tokens.shape
    device = tokens.device
    keep = min(nodes - 1, count)
    chosen = scores.sort(dim=1, descending=True, stable=True).indices[:, :keep].sort(dim=1).values
    node_of = torch.zeros(batch, count + 1, dtype=torch.int64, device=device)  # candidate + 1 -> node; root -> 0
    node_of.scatter_(1, chosen + 1, torch.arange(1, keep + 1, device=device).expand(batch, -1))
    picked_parents = node_of.gather(1, parents.gather(1, chosen) + 1)
    column = torch.full((batch, 1), -1, dtype=torch.int64, device=device)
    all_parents = torch.cat([column, picked_parents], dim=1)
    all_tokens = torch.cat([roots[:, None], tokens.gather(1, chosen)], dim=1)
    all_depths = torch.cat([torch.zeros_like(column), depths[chosen]], dim=1)
    return DraftTrees(all_tokens, all_parents, all_depths, ancestors(all_parents, int(depths.max())))


def ancestors(parents: Tensor, depth: int) -> Tensor:
    """Parents int64 [B, N] of trees at most `depth` deep -> bool [B, N, N]: a node sees itself and its ancestors."""
    batch, nodes = parents.shape
    visible = torch.eye(nodes, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    above = parents
    for _ in range(depth):
        visible |= torch.nn.functional.one_hot(above.clamp(min=0), nodes).bool() & (above >= 0)[:, :, None]
        above = parents.gather(1, above.clamp(min=0)).masked_fill(above < 0, -1)
    return visible


@dataclass(frozen=True)
class Walk:
    """The verified part of a tree."""

    path: list[int]  # nodes whose rows are committed, the root first
    tokens: list[int]  # chosen by the target after each of them: accepted drafts, then the bonus token


def walk(tokens: list[int], parents: list[int], choose: Callable[[int, int], int]) -> Walk:
    """Follow the target's choices from the root as far as the tree has them.

    choose(node, depth) is the target's token after `node`, drawn from the target's own distribution there. The tokens
    committed are these draws and nothing else, so their distribution is the target's whatever the tree holds: drafts
    decide only how many are made in one step. For a deterministic tree this is what SGLang's target-only tree sampling
    comes to.
    """
    children = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True)) if node}
    node, path, chosen = 0, [0], list[int]()
    while True:
        token = choose(node, len(chosen))
        chosen.append(token)
        child = children.get((node, token))
        if child is None:
            return Walk(path, chosen)
        path.append(child)
        node = child
