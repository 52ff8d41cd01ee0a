"""Prompt lookup counted on tokens: hand-worked cases and the bounds that always hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculator_runtime.traffic.lookup import simulate


def test_copying_a_long_span_commits_the_chain_and_the_bonus_each_step() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    count = simulate(prompt, [1, 2, 3, 4, 5, 6, 7, 8, 9], draft_tokens=3)
    assert (count.tokens, count.steps) == (8, 2)  # first token from the prefill, then 4 + 4


def test_tokens_never_seen_before_commit_one_per_step() -> None:
    count = simulate([1, 2, 3], [10, 11, 12, 13], draft_tokens=3)
    assert (count.tokens, count.steps) == (3, 3)
    assert count.accept_length == 1.0


def test_the_longest_match_wins_over_a_more_recent_shorter_one() -> None:
    # After 1 2: the 2-gram says 3, the more recent 1-gram "2" says 9.
    count = simulate([1, 2, 3, 7, 2, 9], [1, 2, 3], draft_tokens=1)
    # step 1 (tail 9 1, "1" -> 2): accepts 2, bonus 3: everything in one step.
    assert (count.tokens, count.steps) == (2, 1)
    count = simulate([1, 2, 3, 4, 2, 9, 8, 1], [2, 3, 5], draft_tokens=1)
    assert (count.tokens, count.steps) == (2, 1)  # tail "1 2" -> 3 accepted, bonus 5


def test_the_most_recent_occurrence_of_equal_length_is_followed() -> None:
    count = simulate([5, 1, 6, 2], [5, 6, 9], draft_tokens=1)
    assert count.steps == 2  # "5" -> 1 is wrong: one token; then "6" -> 2 is wrong: one token
    count = simulate([5, 1, 5, 6, 2], [5, 6, 9], draft_tokens=1)
    assert count.steps == 1  # the later "5" -> 6 is right, bonus 9


def test_a_repetition_drafts_only_what_is_already_there() -> None:
    count = simulate([0], [7] * 9, draft_tokens=3)
    # commits 1 (no match), 2 (one follower known), 4 (three known), then the last one
    assert (count.tokens, count.steps) == (8, 4)


@pytest.mark.parametrize("output", [[], [3]])
def test_outputs_without_a_verify_step_have_no_accept_length(output: list[int]) -> None:
    assert simulate([1, 2], output, draft_tokens=2).accept_length is None


def test_a_chain_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        simulate([1], [2], draft_tokens=0)


tokens = st.lists(st.integers(0, 5), min_size=1, max_size=40)


@given(prompt=tokens, output=tokens, draft=st.integers(1, 4))
def test_every_token_is_committed_once_and_no_step_exceeds_the_chain(
    prompt: list[int], output: list[int], draft: int
) -> None:
    count = simulate(prompt, output, draft)
    assert count.tokens == len(output) - 1
    assert count.steps <= count.tokens <= count.steps * (draft + 1)
