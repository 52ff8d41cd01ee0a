"""Every loss against a plain float64 reference with autograd, gradients too."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculator_runtime.drafter.vocabulary import VocabularyMap
from speculator_runtime.training.losses import (
    FORWARD_KL,
    LOSSES,
    REVERSE_KL,
    REVERSE_KL_NEXT_TOKEN,
    head_loss,
    restrict,
    step_weights,
)

V, H = 40, 8


def reference(kind, draft_logits, target_logits, tokens_of_slots, k, next_slots):
    """Row by row, in words: restrict the target to the draft vocabulary, keep the k known tokens, lump the rest."""
    losses = []
    for row, (draft, target) in enumerate(zip(draft_logits, target_logits, strict=True)):
        p_full, q = target.softmax(-1), draft.softmax(-1)
        known_tokens = target.topk(k).indices.tolist()
        slot_of = {int(token): slot for slot, token in enumerate(tokens_of_slots)}
        outside = sum(p_full[token] for token in known_tokens if token not in slot_of)
        slots = [slot_of[token] for token in known_tokens if token in slot_of]
        tokens = [token for token in known_tokens if token in slot_of]
        p = [p_full[token] / (1 - outside) for token in tokens]
        groups = [(p_i, q[slot]) for p_i, slot in zip(p, slots, strict=True)]
        if len(slots) == len(q):  # All that is unknown is outside then.
            p = [p_i / sum(p) for p_i in p]
            groups = [(p_i, q[slot]) for p_i, slot in zip(p, slots, strict=True)]
        rest = [slot for slot in range(len(q)) if slot not in slots]
        if rest:
            groups.append((torch.as_tensor(1 - sum(p)).clamp_min(1e-5), q[rest].sum()))
        if kind == FORWARD_KL:
            losses.append(sum(a * (a.log() - b.log()) for a, b in groups))
        else:
            loss = sum(b * (b.log() - a.log()) for a, b in groups)
            if kind == REVERSE_KL_NEXT_TOKEN and next_slots[row] >= 0:
                loss = loss - q[next_slots[row]].log()
            losses.append(loss)
    return torch.stack(losses)


def rows(seed, count=5, used=15, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    vocabulary = VocabularyMap(V, 20, torch.randperm(V, generator=generator)[:used].tolist())
    normed = torch.randn(count, H, generator=generator, dtype=torch.float64)
    head = torch.randn(used, H, generator=generator, dtype=torch.float64)
    target = sharpness * torch.randn(count, V, generator=generator, dtype=torch.float64)
    weights = torch.rand(count, generator=generator, dtype=torch.float64)
    next_slots = torch.randint(-1, used, (count,), generator=generator)
    return vocabulary, normed, head, target, weights, next_slots


def teacher_of(target, vocabulary, k, dtype=torch.float64):
    top = target.topk(k)
    return restrict(top.indices.int(), top.values, target.logsumexp(-1), vocabulary.slots, dtype)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("k", [1, 7, V])
@pytest.mark.parametrize("used", [1, 15, 20])
def test_loss_and_gradients_equal_the_float64_reference(kind, k, used):
    vocabulary, normed, head, target, weights, next_slots = rows(seed=k + used, used=used)
    a, b = normed.clone().requires_grad_(), head.clone().requires_grad_()
    teacher = teacher_of(target, vocabulary, k)
    result = head_loss(kind, a, b, teacher, weights, next_slots, torch.float64)
    result.loss.backward()

    c, d = normed.clone().requires_grad_(), head.clone().requires_grad_()
    expected = reference(kind, c @ d.T, target, vocabulary.tokens[:used], k, next_slots)
    (expected * weights).sum().backward()
    torch.testing.assert_close(result.rows, expected.detach(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(a.grad, c.grad, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(b.grad, d.grad, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", LOSSES)
def test_full_teacher_over_the_whole_vocabulary_is_the_plain_divergence(kind):
    vocabulary = VocabularyMap.initial(V, V)
    _, normed, _, target, weights, next_slots = rows(seed=1)
    head = torch.randn(V, H, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    result = head_loss(kind, normed, head, teacher_of(target, vocabulary, V), weights, next_slots, torch.float64)
    p, log_q = target.softmax(-1), (normed @ head.T).log_softmax(-1)
    forward = (p * (p.log() - log_q)).sum(-1)
    reverse = (log_q.exp() * (log_q - p.log())).sum(-1)
    token = torch.where(next_slots >= 0, -log_q.gather(1, next_slots.clamp_min(0)[:, None])[:, 0], 0.0)
    plain = {FORWARD_KL: forward, REVERSE_KL: reverse, REVERSE_KL_NEXT_TOKEN: reverse + token}
    torch.testing.assert_close(result.rows, plain[kind], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [FORWARD_KL, REVERSE_KL])
def test_a_drafter_that_equals_the_teacher_has_no_loss_and_no_gradient(kind):
    vocabulary = VocabularyMap.initial(V, V)
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(V, H, generator=generator, dtype=torch.float64)
    normed = torch.randn(4, H, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = teacher_of((normed @ head.T).detach(), vocabulary, 10)
    result = head_loss(kind, normed, head, teacher, torch.ones(4), torch.full((4,), -1), torch.float64)
    result.loss.backward()
    assert abs(float(result.loss.detach())) < 1e-9
    assert float(normed.grad.abs().max()) < 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(LOSSES), st.sampled_from([2.0, 20.0]))
def test_float32_stays_near_float64_for_sharp_rows_too(seed, kind, sharpness):
    vocabulary, normed, head, target, weights, next_slots = rows(seed, sharpness=sharpness)
    wide = head_loss(kind, normed, head, teacher_of(target, vocabulary, 7), weights, next_slots, torch.float64)
    narrow = head_loss(
        kind,
        normed.float(),
        head.float(),
        teacher_of(target.float(), vocabulary, 7, torch.float32),
        weights.float(),
        next_slots,
        torch.float32,
    )
    assert bool(torch.isfinite(narrow.rows).all())
    teacher = teacher_of(target, vocabulary, 7)
    # Rows whose argmax is outside are masked in training, and a small tail is a difference of float32 numbers.
    supervised = (teacher.best >= 0) & ((teacher.log_tail.exp() > 1e-2) | (teacher.log_tail.exp() < 1.001e-5))
    torch.testing.assert_close(narrow.rows[supervised].double(), wide.rows[supervised], rtol=2e-3, atol=2e-3)


def test_chunks_give_the_same_as_one_piece(monkeypatch):
    vocabulary, normed, head, target, weights, next_slots = rows(seed=4, count=9)
    teacher = teacher_of(target, vocabulary, 7)

    def gradients():
        a, b = normed.clone().requires_grad_(), head.clone().requires_grad_()
        head_loss(REVERSE_KL_NEXT_TOKEN, a, b, teacher, weights, next_slots, torch.float64).loss.backward()
        return a.grad, b.grad

    whole = gradients()
    monkeypatch.setattr("speculator_runtime.training.losses._CHUNK_ELEMENTS", 30)
    for one, other in zip(gradients(), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_no_rows_is_a_loss_of_zero():
    vocabulary, normed, head, target, weights, next_slots = rows(seed=4)
    teacher = teacher_of(target, vocabulary, 3).select(torch.empty(0, dtype=torch.int64))
    a = normed[:0].clone().requires_grad_()
    result = head_loss(FORWARD_KL, a, head, teacher, weights[:0], next_slots[:0], torch.float32)
    result.loss.backward()
    assert float(result.loss.detach()) == 0.0


def test_the_restricted_mass_is_what_the_log_sum_exp_says():
    """p = (.5 in, .3 out, .1 in | .1 unknown): known tokens outside are taken out, .7 remain."""
    p = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04], dtype=torch.float64)
    vocabulary = VocabularyMap(5, 4, [0, 2, 3])
    teacher = restrict(
        torch.tensor([[0, 1, 2]]), p[:3].log()[None] + 7, torch.tensor([7.0]), vocabulary.slots, torch.float64
    )
    assert teacher.known.tolist() == [[True, False, True]]
    torch.testing.assert_close(teacher.log_p.exp()[0, [0, 2]], torch.tensor([0.5, 0.1], dtype=torch.float64) / 0.7)
    assert math.isclose(float(teacher.log_tail.exp()), 0.1 / 0.7, rel_tol=1e-6)


def test_rounded_logits_whose_mass_exceeds_one_are_normalised():
    teacher = restrict(torch.tensor([[0, 1]]), torch.tensor([[0.01, -4.0]]), torch.tensor([0.0]), torch.arange(3))
    assert math.isclose(float(teacher.log_p.exp().sum()), 1.0, rel_tol=1e-6)


def test_step_weights_decay_and_sum_to_one():
    weights = step_weights(3, 0.5)
    assert weights == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_an_unknown_loss_is_named():
    vocabulary, normed, head, target, weights, next_slots = rows(seed=4)
    with pytest.raises(ValueError, match="'Cosine' is unknown"):
        head_loss("Cosine", normed, head, teacher_of(target, vocabulary, 3), weights, next_slots, torch.float32)
