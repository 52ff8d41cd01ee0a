import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculator_runtime.drafter.vocabulary import FULL, GROWING, VocabularyMap, VocabularyMapError, silent_rows

counts_strategy = st.lists(st.lists(st.integers(0, 5), min_size=30, max_size=30), min_size=1, max_size=4)


def test_new_tokens_fill_free_slots_most_frequent_first_and_ties_by_id():
    vocabulary = VocabularyMap.initial(10, 6, first=(7,))
    filled = vocabulary.grow(torch.tensor([0, 2, 5, 0, 2, 0, 0, 9, 0, 1]))
    assert filled == range(1, 5)
    assert vocabulary.tokens.tolist() == [7, 2, 1, 4, 9, 7]


def test_what_does_not_fit_is_left_out_and_used_slots_stay():
    vocabulary = VocabularyMap.initial(10, 3, first=(7,))
    vocabulary.grow(torch.tensor([1, 0, 3, 0, 2, 0, 0, 0, 0, 0]))
    before = vocabulary.tokens.tolist()
    assert vocabulary.grow(torch.full((10,), 100)) == range(3, 3)
    assert vocabulary.tokens.tolist() == before == [7, 2, 4]


@given(counts_strategy)
def test_a_used_slot_never_changes_its_token_and_no_token_has_two(rounds):
    vocabulary = VocabularyMap.initial(30, 12, first=(3,))
    for counts in rounds:
        before = vocabulary.tokens[: vocabulary.used].tolist()
        vocabulary.grow(torch.tensor(counts))
        now = vocabulary.tokens[: vocabulary.used].tolist()
        assert now[: len(before)] == before
        assert len(set(now)) == len(now)


@given(counts_strategy)
def test_a_map_reads_back_from_d2t_and_t2d(rounds):
    vocabulary = VocabularyMap.initial(30, 12)
    for counts in rounds:
        vocabulary.grow(torch.tensor(counts))
    again = VocabularyMap.from_d2t(vocabulary.d2t(), vocabulary.t2d())
    assert again.used == vocabulary.used
    assert torch.equal(again.tokens, vocabulary.tokens)
    assert torch.equal(again.slots, vocabulary.slots)


def test_sglang_maps_every_slot_to_a_token_of_the_map():
    vocabulary = VocabularyMap.initial(30, 12, first=(3, 5))
    hot_token_id = vocabulary.d2t() + torch.arange(12)
    assert vocabulary.t2d()[hot_token_id].all()


def test_whole_vocabulary_is_the_identity():
    vocabulary = VocabularyMap.initial(30, 30)
    assert (vocabulary.kind, vocabulary.used, vocabulary.free) == (FULL, 30, 0)
    assert not vocabulary.d2t().any()
    assert vocabulary.t2d().all()


def test_start_without_known_tokens_uses_token_zero():
    vocabulary = VocabularyMap.initial(30, 12)
    assert (vocabulary.kind, vocabulary.used, vocabulary.free) == (GROWING, 1, 11)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d2t, t2d: t2d.fill_(False), "t2d marks 0 tokens"),
        (lambda d2t, t2d: t2d.__setitem__(6, True), "more than one slot"),
        (lambda d2t, t2d: (t2d.__setitem__(5, False), t2d.__setitem__(6, True)), "other tokens"),
        (lambda d2t, t2d: d2t.__setitem__(1, 1000), "outside the target's vocabulary"),
        (lambda d2t, t2d: d2t.__setitem__(7, 0), "must repeat the token of slot 0"),
    ],
)
def test_a_contradiction_between_d2t_and_t2d_is_named(change, words):
    vocabulary = VocabularyMap.initial(30, 12, first=(3, 5))
    d2t, t2d = vocabulary.d2t(), vocabulary.t2d()
    change(d2t, t2d)
    with pytest.raises(VocabularyMapError, match=words):
        VocabularyMap.from_d2t(d2t, t2d)


def test_a_free_slot_never_has_the_largest_logit():
    generator = torch.Generator().manual_seed(0)
    head = silent_rows(torch.randn(12, 8, generator=generator), used=5)
    logits = torch.randn(10_000, 8, generator=generator) @ head.T
    assert bool((logits.argmax(-1) < 5).all())
