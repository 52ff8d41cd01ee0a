"""Choosing and walking draft trees."""

import torch

from speculator_runtime.engines.reference.tree import ancestors, chain, select, walk


def test_chain_is_a_tree_in_which_every_node_sees_all_before_it() -> None:
    trees = chain(torch.tensor([[5, 6, 7]]))
    assert trees.parents.tolist() == [[-1, 0, 1]]
    assert trees.depths.tolist() == [[0, 1, 2]]
    assert trees.visible.tolist() == [[[True, False, False], [True, True, False], [True, True, True]]]


def test_select_keeps_the_best_nodes_by_cumulative_score_with_their_parents_before_them() -> None:
    # Two children of the root (candidates 0, 1), then two children of each (2, 3 of 0; 4, 5 of 1).
    trees = select(
        roots=torch.tensor([9]),
        tokens=torch.tensor([[10, 11, 12, 13, 14, 15]]),
        parents=torch.tensor([[-1, -1, 0, 0, 1, 1]]),
        scores=torch.tensor([[-0.1, -1.0, -0.2, -5.0, -1.1, -6.0]]),
        depths=torch.tensor([1, 1, 2, 2, 2, 2]),
        nodes=5,
    )
    assert trees.tokens.tolist() == [[9, 10, 11, 12, 14]]
    assert trees.parents.tolist() == [[-1, 0, 0, 1, 2]]
    assert trees.depths.tolist() == [[0, 1, 1, 2, 2]]
    assert trees.visible[0, 4].tolist() == [True, False, True, False, True]


def test_select_prefers_a_parent_to_a_child_that_is_just_as_likely() -> None:
    trees = select(
        roots=torch.tensor([1]),
        tokens=torch.tensor([[2, 3, 4, 5]]),
        parents=torch.tensor([[-1, 0, 1, 2]]),
        scores=torch.zeros(1, 4),
        depths=torch.tensor([1, 2, 3, 4]),
        nodes=3,
    )
    assert trees.tokens.tolist() == [[1, 2, 3]]
    assert trees.parents.tolist() == [[-1, 0, 1]]


def test_select_with_fewer_candidates_than_wanted_keeps_them_all() -> None:
    trees = select(
        torch.tensor([1]), torch.tensor([[2]]), torch.tensor([[-1]]), torch.zeros(1, 1), torch.tensor([1]), nodes=8
    )
    assert trees.nodes == 2


def test_ancestors_of_a_branching_tree() -> None:
    visible = ancestors(torch.tensor([[-1, 0, 0, 1, 3]]), depth=3)[0]
    assert visible[4].tolist() == [True, True, False, True, True]
    assert visible[2].tolist() == [True, False, True, False, False]


def test_walk_follows_the_targets_choices_and_ends_with_one_that_has_no_node() -> None:
    chosen = {0: 7, 2: 8, 3: 99}
    found = walk(tokens=[1, 6, 7, 8], parents=[-1, 0, 0, 2], choose=lambda node, _: chosen[node])
    assert found.path == [0, 2, 3]
    assert found.tokens == [7, 8, 99]


def test_walk_commits_one_token_when_every_draft_is_wrong() -> None:
    found = walk([1, 2, 3], [-1, 0, 1], lambda _, __: 50)
    assert (found.path, found.tokens) == ([0], [50])


def test_walk_takes_a_token_only_under_its_own_parent() -> None:
    # Token 4 exists below node 1, but the target went to node 2.
    found = walk([0, 1, 2, 4], [-1, 0, 0, 1], lambda node, _: {0: 2, 2: 4}[node])
    assert found.path == [0, 2]
    assert found.tokens == [2, 4]
