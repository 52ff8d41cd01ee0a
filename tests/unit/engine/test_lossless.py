"""Losslessness: whatever is drafted, swapped or switched, the output is the target's own, token for token."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speculator_runtime.contracts.control import DraftShape
from speculator_runtime.engines.reference.sampling import SamplingParams
from speculator_runtime.engines.reference.sequence import Sequence
from support.engine_bench import Bench, Oracle, Script, random_checkpoint, serve

VOCAB = 320  # of the tiny target in conftest.py
Generate = Callable[[list[int], int], list[int]]


@st.composite
def shapes(draw: st.DrawFn) -> DraftShape:
    steps, topk = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    most = 1 + topk + (steps - 1) * topk**2
    return DraftShape(steps=steps, topk=topk, draft_tokens=draw(st.integers(2, max(2, most))))


steps_of = st.lists(st.tuples(st.booleans(), st.one_of(st.none(), shapes())), min_size=4, max_size=12)
prompts_of = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=5, unique_by=tuple
)
lengths_of = st.lists(st.integers(1, 24), min_size=5, max_size=5)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=prompts_of, lengths=lengths_of, script=steps_of, prefill_rows=st.integers(1, 50))
def test_greedy_output_equals_plain_generate_with_a_random_drafter_swapped_and_switched_at_random(
    bench_of: Callable[..., Bench],
    plain_generate: Generate,
    prompts: list[list[int]],
    lengths: list[int],
    script: Script,
    prefill_rows: int,
) -> None:
    bench = bench_of()
    sequences = [Sequence(len(p), list(p), n) for p, n in zip(prompts, lengths, strict=False)]

    def swap(turn: int) -> None:
        bench.runner.swap(random_checkpoint(bench.config, seed=turn, used=1 + (turn * 37) % VOCAB))

    serve(bench.batch, sequences, script, prefill_rows, swap)
    for prompt, length, sequence in zip(prompts, lengths, sequences, strict=False):
        assert sequence.output == plain_generate(prompt, length)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=prompts_of, lengths=lengths_of, script=steps_of, seed=st.integers(0, 2**31))
def test_greedy_output_equals_plain_generate_with_a_drafter_that_is_right_up_to_a_random_depth(
    bench_of: Callable[..., Bench],
    plain_generate: Generate,
    prompts: list[list[int]],
    lengths: list[int],
    script: Script,
    seed: int,
) -> None:
    bench = bench_of()
    sequences = [Sequence(len(p), list(p), n) for p, n in zip(prompts, lengths, strict=False)]
    truth = {id(s): plain_generate(p, n) for s, p, n in zip(sequences, prompts, lengths, strict=False)}
    bench.batch.proposer = Oracle(truth, VOCAB, seed)
    serve(bench.batch, sequences, script, 16, lambda _: None)
    for sequence in sequences:
        assert sequence.output == truth[id(sequence)]


def test_the_oracle_is_accepted_and_saves_steps(bench_of: Callable[..., Bench], plain_generate: Generate) -> None:
    """Without this, the property above could hold because nothing is ever accepted."""
    bench = bench_of()
    prompt = list(range(7))
    sequence = Sequence(len(prompt), list(prompt), 40)
    bench.batch.proposer = Oracle({id(sequence): plain_generate(prompt, 40)}, VOCAB, seed=3)
    shape = DraftShape(steps=4, topk=2, draft_tokens=19)
    serve(bench.batch, [sequence], [(False, shape)], 16, lambda _: None)
    assert sequence.output == plain_generate(prompt, 40)
    assert sequence.drafts_accepted > 10
    assert sequence.verify_steps + sequence.drafts_accepted == 39


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=steps_of,
    temperature=st.floats(0.3, 1.5),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    top_k=st.sampled_from([0, 2, 20]),
    seed=st.integers(0, 2**40),
)
def test_sampled_output_is_the_same_with_and_without_speculation(
    bench_of: Callable[..., Bench],
    script: Script,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
) -> None:
    params = [SamplingParams(temperature, top_p, top_k, seed + i) for i in range(3)] + [SamplingParams()]
    prompts = [[1, 2, 3], [4] * 11, list(range(30)), [9, 8]]

    def run(steps: Script, oracle: dict[int, list[int]] | None) -> list[list[int]]:
        bench = bench_of()
        sequences = [Sequence(len(p), list(p), 16, q) for p, q in zip(prompts, params, strict=True)]
        if oracle is not None:
            truth = {id(s): oracle[i] for i, s in enumerate(sequences)}
            bench.batch.proposer = Oracle(truth, VOCAB, seed % 1000)
        serve(bench.batch, sequences, steps, 16, lambda t: bench.runner.swap(random_checkpoint(bench.config, t, VOCAB)))
        return [s.output for s in sequences]

    alone = run([(False, None)], None)
    assert run(script, None) == alone
    assert run(script, dict(enumerate(alone))) == alone


def test_a_stop_token_inside_an_accepted_path_ends_the_request_there(
    bench_of: Callable[..., Bench], plain_generate: Generate
) -> None:
    prompt = list(range(7))
    truth = plain_generate(prompt, 30)
    stop = truth[12]
    until = truth.index(stop) + 1
    for seed in range(8):
        bench = bench_of()
        sequence = Sequence(len(prompt), list(prompt), 30, stop_tokens=frozenset({stop}))
        bench.batch.proposer = Oracle({id(sequence): truth}, VOCAB, seed)
        serve(bench.batch, [sequence], [(False, DraftShape(steps=4, topk=2, draft_tokens=19))], 16, lambda _: None)
        assert sequence.output == truth[:until]


def test_in_target_only_mode_the_drafter_does_nothing(
    bench_of: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the drafter ran in target-only mode")

    for name in ("fuse", "project", "finish", "head", "forward"):
        monkeypatch.setattr(bench.runner.drafter, name, never)
    sequences = [Sequence(3, [1, 2, 3], 10), Sequence(2, [4, 5], 6)]
    serve(bench.batch, sequences, [(False, None)], 16, lambda _: None)
    assert [s.output_length for s in sequences] == [10, 6]
    assert [s.drafted for s in sequences] == [0, 0]
