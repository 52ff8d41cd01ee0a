"""Sampling: the filters, the distribution, and that speculation leaves the distribution alone."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from scipy import stats

from speculator_runtime.contracts.control import DraftShape
from speculator_runtime.engines.reference.sampling import SamplingParams, sample, uniform
from speculator_runtime.engines.reference.sequence import Sequence
from support.engine_bench import Bench, Oracle, serve

LOGITS = torch.log(torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2], dtype=torch.float64))


def drawn(params: SamplingParams, count: int = 4000) -> Counter[int]:
    """First tokens of requests that differ in their seeds only."""
    return Counter(
        sample(LOGITS, SamplingParams(params.temperature, params.top_p, params.top_k, seed), 0) for seed in range(count)
    )


def agrees(counts: Counter[int], probabilities: dict[int, float]) -> bool:
    """Chi-square test at 1 in 10,000: fixed seeds, so that a pass today is a pass tomorrow."""
    assert set(counts) <= set(probabilities)
    total = sum(counts.values())
    observed = [counts[token] for token in probabilities]
    expected = [total * p / sum(probabilities.values()) for p in probabilities.values()]
    return bool(stats.chisquare(observed, expected).pvalue > 1e-4)


def test_temperature_zero_is_greedy() -> None:
    assert sample(LOGITS, SamplingParams(), 0) == 1


def test_draws_follow_the_softmax() -> None:
    assert agrees(drawn(SamplingParams(1.0)), {0: 0.05, 1: 0.4, 2: 0.1, 3: 0.25, 4: 0.2})


def test_temperature_sharpens() -> None:
    weights = {token: p**2 for token, p in enumerate([0.05, 0.4, 0.1, 0.25, 0.2])}
    assert agrees(drawn(SamplingParams(0.5)), weights)


def test_top_k_keeps_the_most_likely() -> None:
    assert agrees(drawn(SamplingParams(1.0, top_k=2)), {1: 0.4, 3: 0.25})


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert agrees(drawn(SamplingParams(1.0, top_p=0.7)), {1: 0.4, 3: 0.25, 4: 0.2})


def test_top_p_applies_to_what_top_k_left() -> None:
    # Of 0.4, 0.25, 0.2 renormalised, the first two hold 0.76 of the mass.
    assert agrees(drawn(SamplingParams(1.0, top_p=0.7, top_k=3)), {1: 0.4, 3: 0.25})


def test_top_p_of_a_flat_distribution_over_a_large_vocabulary_is_exact() -> None:
    logits = torch.zeros(5000)
    tokens = {sample(logits, SamplingParams(1.0, top_p=0.5, seed=seed), 0) for seed in range(3000)}
    assert max(tokens) <= 2500  # one more where the sum of 2,500 probabilities rounds to just below a half
    assert len(tokens) > 1500


def test_uniform_is_uniform_and_independent_of_its_neighbours() -> None:
    values = [uniform(seed, index) for seed in range(200) for index in range(50)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert abs(stats.pearsonr(values[:-1], values[1:]).statistic) < 0.03
    by_seed = [uniform(seed, 0) for seed in range(10_000)]
    assert stats.kstest(by_seed, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    "shape", [DraftShape(steps=2, topk=1, draft_tokens=3), DraftShape(steps=2, topk=3, draft_tokens=8)]
)
def test_speculation_preserves_the_distribution_of_what_is_written(
    bench_of: Callable[..., Bench], shape: DraftShape
) -> None:
    """Tokens drawn in accepted paths, after rejections and target-only have one distribution: the exact one.

    top_k 3 keeps the number of outcomes small enough to count: 27 texts of three tokens, with probabilities from
    plain forwards of the target.
    """
    params = SamplingParams(temperature=1.2, top_k=3)
    prompt = [3, 1, 4, 1, 5]
    exact = exact_distribution(bench_of, prompt, params, 3)
    bench = bench_of(slots=64, context=16)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    likely = list(max(exact, key=lambda text: exact[text]))
    for start in range(0, 768, 64):
        sequences = [Sequence(5, list(prompt), 3, SamplingParams(1.2, top_k=3, seed=start + i)) for i in range(64)]
        # Drafts hold the likeliest text or a part of it, for every request: sometimes right, often wrong.
        bench.batch.proposer = Oracle({id(s): likely for s in sequences}, 320, seed=start)
        serve(bench.batch, sequences, [(False, shape)], 16, lambda _: None)
        counts.update(tuple(s.output) for s in sequences)
        accepted += sum(s.drafts_accepted for s in sequences)
    assert accepted > 50
    assert set(counts) <= set(exact)
    frequent = {text: p for text, p in exact.items() if p * 768 >= 5}
    rest = 1 - sum(frequent.values())
    observed = [counts[text] for text in frequent] + [sum(n for text, n in counts.items() if text not in frequent)]
    expected = [768 * p for p in [*frequent.values(), rest]]
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def exact_distribution(
    bench_of: Callable[..., Bench], prompt: list[int], params: SamplingParams, length: int
) -> dict[tuple[int, ...], float]:
    """Probability of every text that top_k leaves, by plain forwards."""
    target = bench_of(slots=1, context=16).batch.target
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        grown: dict[tuple[int, ...], float] = {}
        for text, probability in texts.items():
            cache = target.cache(1, 32)
            tokens = torch.tensor([prompt + list(text)])
            n = tokens.shape[1]
            causal = torch.ones(1, n, n, dtype=torch.bool).tril()
            out = target.forward(cache, 0, [0], tokens, torch.arange(n)[None], causal)
            top = (target.logits(out.hidden[0, -1]) / params.temperature).topk(params.top_k)
            for token, p in zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True):
                grown[(*text, token)] = probability * p
        texts = grown
    return texts
