"""The unrolled training forward equals what serving computes, and its rows begin and end where they must."""

import pytest
import torch

from speculator_runtime.drafter.vocabulary import VocabularyMap
from speculator_runtime.training.batch import collate
from speculator_runtime.training.losses import FORWARD_KL, LOSSES, restrict
from speculator_runtime.training.sample import from_trace
from speculator_runtime.training.unroll import unroll

IDENTITY = torch.arange(50)


def serve(drafter, embedding, sample, t, k):
    """Hidden of the draft chain's pass k from row t, computed with `forward` and a cache as an engine does."""
    tokens, start = sample.tokens.long(), sample.start
    rows = torch.arange(start, t + 1)
    keys = values = drafter.empty_cache(1)
    mask = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    mask = mask.masked_fill(~torch.ones_like(mask).tril().bool(), float("-inf"))
    fused = drafter.fuse(sample.hidden.double()[: len(rows)])[None]
    step = drafter(embedding[tokens[rows + 1]][None], fused, rows[None], keys, values, mask[None, None])
    keys, values, hidden, logits = step.key, step.value, step.hidden[:, -1:], step.logits[0, -1]
    for j in range(1, k + 1):
        token = embedding[tokens[t + 1 + j]][None, None]
        step = drafter(token, hidden, torch.tensor([[t + j]]), keys, values, None)
        keys, values = torch.cat([keys, step.key], 2), torch.cat([values, step.value], 2)
        hidden, logits = step.hidden, step.logits[0, -1]
    return logits


def served_loss(drafter, embedding, sample, weights, vocabulary=IDENTITY):
    """The same loss, row by row through the serving forward, in words: every draft row t >= P - 1 and step k whose
    teacher at t + 1 + k was kept, whose argmax is in the vocabulary."""
    total = torch.zeros((), dtype=torch.float64)
    counts = [0] * len(weights)
    teacher = restrict(sample.teacher_ids, sample.teacher_logits, sample.teacher_lse, vocabulary, torch.float64)
    for k, weight in enumerate(weights):
        for row, position in enumerate(sample.teacher_rows.tolist()):
            t = position - 1 - k
            if t < max(sample.header.prompt_length - 1, sample.start) or teacher.best[row] < 0:
                continue
            log_q = serve(drafter, embedding, sample, t, k).log_softmax(-1)
            known = teacher.slots[row][teacher.known[row]]
            log_p = teacher.log_p[row][teacher.known[row]]
            rest = torch.ones(log_q.numel(), dtype=torch.bool)
            rest[known] = False
            total = total + weight * (log_p.exp() * (log_p - log_q[known])).sum()
            log_tail = teacher.log_tail[row]
            total = total + weight * log_tail.exp() * (log_tail - log_q[rest].logsumexp(-1))
            counts[k] += 1
    return total, counts


def test_every_step_equals_the_serving_forward_with_its_gradients(drafter, embedding, make_trace):
    samples = [from_trace(make_trace(seed=i, prompt=p, total=n), 99) for i, (p, n) in enumerate([(4, 10), (2, 7)])]
    weights = [0.5, 0.3, 0.2]
    batch = collate(samples, 3, IDENTITY, torch.float64, torch.float64)
    result = unroll(drafter, embedding, batch, FORWARD_KL, weights, torch.float64)
    result.loss.backward()
    gradients = {name: p.grad.clone() for name, p in drafter.named_parameters()}
    drafter.zero_grad()

    served = [served_loss(drafter, embedding, sample, weights) for sample in samples]
    expected = sum(loss for loss, _ in served)
    expected.backward()
    assert batch.supervised == [a + b for a, b in zip(*(counts for _, counts in served), strict=True)]
    torch.testing.assert_close(result.loss, expected)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, msg=name)


def test_packing_changes_nothing(drafter, embedding, make_trace):
    samples = [from_trace(make_trace(seed=i, prompt=3 + i, total=9 + 2 * i), 99) for i in range(3)]
    together = unroll(
        drafter, embedding, collate(samples, 3, IDENTITY, torch.float64), FORWARD_KL, [1.0] * 3, torch.float64
    )
    alone = [
        unroll(drafter, embedding, collate([s], 3, IDENTITY, torch.float64), FORWARD_KL, [1.0] * 3, torch.float64)
        for s in samples
    ]
    torch.testing.assert_close(together.loss, sum(r.loss for r in alone))
    assert int(together.accepted) == sum(int(r.accepted) for r in alone)


class TestEdges:
    """Prompt a b c d (positions 0-3), output e f g h (4-7). Features exist for positions 0-6, teachers for 3-6."""

    TOKENS = (10, 11, 12, 13, 20, 21, 22, 23)

    @pytest.fixture
    def batch(self, make_trace):
        sample = from_trace(make_trace(prompt=4, total=8, tokens=torch.tensor(self.TOKENS)), 99)
        return collate([sample], 3, IDENTITY, torch.float32)

    def test_the_first_row_is_the_one_serving_drafts_from_after_prefill(self, batch):
        # Prefill gave e (position 4). The first draft holds e with the features of d (3), sits at 3 and predicts f.
        first = batch.steps[0]
        row = batch.query_rows[0]
        assert (int(batch.context_tokens[row]), int(batch.context_positions[row])) == (20, 3)
        assert (int(first.tokens[0]), int(first.positions[0])) == (20, 3)
        assert int(first.next_slots[0]) == 21
        assert int(first.teacher[0]) == 1  # The teacher rows begin at position 3; f comes from position 4's.

    def test_the_last_row_has_the_last_teacher_and_none_is_made_up(self, batch):
        # Position 6's teacher predicts h, the last token. Row 5 holds g with the features of f: it is the last one.
        assert batch.steps[0].tokens.tolist() == [20, 21, 22]
        assert batch.steps[0].next_slots.tolist() == [21, 22, 23]
        assert batch.steps[0].teacher.tolist() == [1, 2, 3]

    def test_tokens_teachers_and_positions_shift_left_with_every_step(self, batch):
        second, third = batch.steps[1:]
        assert (second.tokens.tolist(), second.positions.tolist()) == ([21, 22], [4, 5])
        assert (second.teacher.tolist(), second.next_slots.tolist()) == ([2, 3], [22, 23])
        assert (third.tokens.tolist(), third.positions.tolist()) == ([22], [5])
        assert (third.teacher.tolist(), third.next_slots.tolist()) == ([3], [23])

    def test_prompt_rows_give_keys_only(self, batch):
        assert batch.context_tokens.tolist() == [11, 12, 13, 20, 21, 22, 23]
        assert batch.query_rows.tolist() == [3, 4, 5]

    def test_an_answer_of_two_tokens_supervises_one_row_once(self, make_trace):
        sample = from_trace(make_trace(prompt=4, total=6), 99)
        assert collate([sample], 3, IDENTITY, torch.float32).supervised == [1, 0, 0]


def test_a_teacher_row_that_was_not_kept_is_skipped_and_later_steps_go_on(drafter, embedding, make_trace):
    sample = from_trace(make_trace(prompt=3, total=9, teacher_rows=[2, 3, 5, 6, 7]), 99)
    batch = collate([sample], 3, IDENTITY, torch.float64)
    _, counts = served_loss(drafter, embedding, sample, [1.0] * 3)
    assert batch.supervised == counts


def test_rows_whose_argmax_has_no_slot_are_not_supervised(drafter, embedding, make_trace):
    sample = from_trace(make_trace(prompt=3, total=12), 99)
    vocabulary = VocabularyMap(50, 25, range(0, 50, 2))
    drafter.used = 25
    batch = collate([sample], 3, vocabulary.slots, torch.float64, torch.float64)
    result = unroll(drafter, embedding, batch, FORWARD_KL, [0.5, 0.3, 0.2], torch.float64)
    expected, counts = served_loss(drafter, embedding, sample, [0.5, 0.3, 0.2], vocabulary.slots)
    assert batch.supervised == counts
    assert counts[0] < 8
    torch.testing.assert_close(result.loss, expected)


def test_after_a_cached_prefix_rows_begin_at_the_first_computed_position(drafter, embedding, make_trace):
    sample = from_trace(make_trace(prompt=5, total=10, hidden_rows=[0, 1, 3, 4, 5, 6, 7, 8]), 99)
    assert sample.start == 3
    batch = collate([sample], 2, IDENTITY, torch.float64, torch.float64)
    result = unroll(drafter, embedding, batch, FORWARD_KL, [1.0, 1.0], torch.float64)
    torch.testing.assert_close(result.loss, served_loss(drafter, embedding, sample, [1.0, 1.0])[0])


@pytest.mark.parametrize("kind", LOSSES)
def test_bfloat16_stays_near_float32(drafter, embedding, make_trace, kind):
    narrow = drafter.float()
    samples = [from_trace(make_trace(seed=i, prompt=4, total=20), 99) for i in range(4)]
    batch = collate(samples, 3, IDENTITY, torch.float32)
    losses = [
        float(unroll(narrow, embedding.float(), batch, kind, [0.02] * 3, dtype).loss.detach())
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_a_perfect_chain_is_counted_as_accepted(drafter, embedding, make_trace):
    sample = from_trace(make_trace(prompt=4, total=8), 99)
    for position, k in [(4, 0), (5, 1), (6, 2)]:
        row = (sample.teacher_rows == position).nonzero()[0, 0]
        sample.teacher_ids[row] = serve(drafter, embedding, sample, 3, k).topk(6).indices.int()
    batch = collate([sample], 3, IDENTITY, torch.float64, torch.float64)
    result = unroll(drafter, embedding, batch, FORWARD_KL, [1.0] * 3, torch.float64)
    assert int(result.accepted) >= 3
    assert result.chains == 3
