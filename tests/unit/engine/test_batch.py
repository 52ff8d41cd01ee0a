"""The batch: features, teacher rows and traces equal what plain transformers computes; slots; draft caches."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from speculator_runtime.contracts.control import DecodeMode, DraftShape
from speculator_runtime.engines.reference.batch import CaptureOptions, greedy_tokens
from speculator_runtime.engines.reference.capture import build_trace
from speculator_runtime.engines.reference.request import Labels, Request
from speculator_runtime.engines.reference.sequence import Sequence
from speculator_runtime.engines.reference.text import TextStream
from speculator_runtime.traces.codec import Trace, decode, encode
from support.engine_bench import Bench, Oracle, random_checkpoint, serve, sharpen

TREE = DraftShape(steps=3, topk=2, draft_tokens=9)
PROMPT = [5, 6, 7, 8, 9, 10]


class _NoText:
    def decode(self, _: list[int]) -> str:
        return ""


def request_of(sequence: Sequence) -> Request:
    labels = Labels("sql", opt_out=None)
    return Request("r1", sequence, TextStream(_NoText(), []), lambda _: None, labels=labels)


def served_trace(bench: Bench, truth: list[int], new_tokens: int, stop: frozenset[int] = frozenset()) -> Trace:
    """A request decoded with an oracle's trees to its end, and its trace after a trip over the wire."""
    batch = bench.batch
    sequence = Sequence(len(PROMPT), list(PROMPT), new_tokens, stop_tokens=stop, capture=True)
    batch.proposer = Oracle({id(sequence): truth}, batch.target.vocab_size, seed=5)
    batch.admit(sequence)
    batch.prefill(4)
    batch.prefill(4)
    while not sequence.stopped:
        trees = batch.propose(TREE)
        assert trees is not None
        batch.step_verify(trees)
    trace = build_trace(request_of(sequence), batch.features[0], batch.target, DecodeMode.SPECULATIVE, 7, 2.0)
    return decode(encode(trace))


@pytest.fixture(scope="module")
def reference(tiny_directory: Path) -> Callable[[list[int]], tuple[torch.Tensor, torch.Tensor]]:
    """tokens -> inputs of layers 0, 2, 3 concatenated [T, 3H] and logits [T, V], by one plain forward."""
    model = AutoModelForCausalLM.from_pretrained(tiny_directory, dtype=torch.float64).eval()

    def forward(tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            out = model(torch.tensor([tokens]), output_hidden_states=True)
        return torch.cat([out.hidden_states[i][0] for i in (0, 2, 3)], dim=-1), out.logits[0]

    return forward


def test_a_trace_holds_what_one_plain_forward_over_the_whole_request_computes(
    bench_of: Callable[..., Bench],
    plain_generate: Callable[[list[int], int], list[int]],
    reference: Callable[[list[int]], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    bench = bench_of(capture=CaptureOptions(top_k=8, rejected=True))
    truth = plain_generate(PROMPT, 20)
    trace = served_trace(bench, truth, 20)
    tokens = PROMPT + truth
    features, logits = reference(tokens)
    tensors = trace.tensors
    assert tensors["tokens"].tolist() == tokens
    # The last token's own row exists only if it was an accepted draft.
    rows = len(tensors["hidden_rows"])
    assert rows in (len(tokens) - 1, len(tokens))
    assert tensors["hidden_rows"].tolist() == list(range(rows))
    torch.testing.assert_close(tensors["hidden"].double(), features[:rows], rtol=1e-2, atol=1e-2)
    assert tensors["teacher_rows"].tolist() == list(range(len(PROMPT) - 1, rows))
    kept = logits[len(PROMPT) - 1 : rows]
    assert torch.equal(tensors["teacher_ids"].long(), kept.topk(8).indices)
    torch.testing.assert_close(tensors["teacher_logits"].double(), kept.topk(8).values, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(tensors["teacher_lse"].double(), kept.logsumexp(-1), rtol=1e-5, atol=1e-5)
    assert trace.header.capture_layers == (0, 2, 3)
    assert trace.header.accepted_draft_tokens + trace.header.verify_steps == 19
    assert (trace.header.domain, trace.header.draft_version, trace.header.opt_out) == ("sql", 7, None)


def test_rejected_nodes_hold_what_a_plain_forward_over_their_branch_computes(
    bench_of: Callable[..., Bench],
    plain_generate: Callable[[list[int], int], list[int]],
    reference: Callable[[list[int]], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    bench = bench_of(capture=CaptureOptions(top_k=8, rejected=True))
    trace = served_trace(bench, plain_generate(PROMPT, 12), 12)
    tensors = trace.tensors
    nodes = len(tensors["tree_tokens"])
    assert nodes > 20
    for node in range(0, nodes, 5):
        branch, above = [], node
        while above >= 0:
            branch.insert(0, int(tensors["tree_tokens"][above]))
            position, above = int(tensors["tree_position"][above]), int(tensors["tree_parent"][above])
        features, logits = reference([*tensors["tokens"].tolist()[:position], *branch])
        torch.testing.assert_close(tensors["tree_hidden"][node].double(), features[-1], rtol=1e-2, atol=1e-2)
        assert tensors["tree_teacher_ids"][node].long().tolist() == logits[-1].topk(8).indices.tolist()
        assert float(tensors["tree_teacher_lse"][node]) == pytest.approx(float(logits[-1].logsumexp(-1)), abs=1e-4)


def test_rows_past_a_stop_token_are_not_in_the_trace(
    bench_of: Callable[..., Bench], plain_generate: Callable[[list[int], int], list[int]]
) -> None:
    truth = plain_generate(PROMPT, 24)
    stop = truth[9]
    end = len(PROMPT) + truth.index(stop) + 1
    trace = served_trace(bench_of(capture=CaptureOptions(8, False)), truth, 24, frozenset({stop}))
    assert trace.header.total_length == end
    assert int(trace.tensors["hidden_rows"].max()) < end
    assert int(trace.tensors["teacher_rows"].max()) < end
    assert len(trace.tensors["tree_tokens"]) == 0


def test_what_a_random_drafter_proposes_is_the_same_in_a_batch_and_alone(bench_of: Callable[..., Bench]) -> None:
    """Slots, padding, other requests' lengths and the way the cache was filled do not show in a proposal."""
    prompts = [[1, 2, 3], list(range(40)), [7] * 17]

    def proposals(together: bool, target_only_first: int) -> list[list[list[int]]]:
        seen: list[list[list[int]]] = []
        groups = [prompts] if together else [[p] for p in prompts]
        for group in groups:
            bench = bench_of(seed=3)
            sequences = [Sequence(len(p), list(p), 60) for p in group]
            for sequence in sequences:
                bench.batch.admit(sequence)
                bench.batch.prefill(100)
            for step in range(8):
                trees = bench.batch.propose(TREE) if step >= target_only_first else None
                if step == 7 and trees is not None:
                    seen += [[t, p] for t, p in zip(trees.tokens.tolist(), trees.parents.tolist(), strict=True)]
                bench.batch.step_target_only()
        return seen

    # Proposed at every step (the cache grows row by row), or first at step 7 (caught up at once): the same trees.
    assert proposals(True, 0) == proposals(False, 7) == proposals(True, 7)


def plain_chain(bench: Bench, sequence: Sequence, features: torch.Tensor, steps: int) -> list[int]:
    """A chain by the drafter's own forward over the whole context, without caches: the definition of EAGLE-3 drafting.

    Row t holds the embedding of token t + 1 with the target's features of position t; later rows hold drafted tokens
    with the output of the row before.
    """
    drafter, embedding = bench.runner.drafter, bench.batch.target.embedding
    tokens, hidden, drafted = list(sequence.tokens), drafter.fuse(features[None]), list[int]()
    for _ in range(steps):
        rows = hidden.shape[1]
        mask = torch.full((rows, rows), float("-inf"), dtype=torch.float64).triu(1)[None, None]
        none = drafter.empty_cache(1)
        step = drafter(embedding[tokens[1:]][None], hidden, torch.arange(rows)[None], none, none, mask)
        drafted.append(int(bench.runner.tokens_of_slots[step.logits[0, -1].argmax()]))
        tokens.append(drafted[-1])
        hidden = torch.cat([hidden, step.hidden[:, -1:]], dim=1)
    return drafted


def test_drafts_are_those_of_the_drafters_own_forward_over_the_whole_context_also_after_a_swap(
    bench_of: Callable[..., Bench], reference: Callable[[list[int]], tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Three requests of different lengths, one leaves; cached rows, committed drafts, two swaps in mid-request."""
    bench = bench_of(seed=1)
    sharpen(bench.runner.drafter)
    sequences = [Sequence(len(p), list(p), 60) for p in ([3, 2, 1, 0], list(range(25)), [7, 8] * 6)]
    for sequence in sequences:
        bench.batch.admit(sequence)
        bench.batch.prefill(100)
    seen: set[tuple[int, ...]] = set()
    for step in range(12):
        if step in (5, 9):
            bench.runner.swap(random_checkpoint(bench.config, 90 + step, 200))
        if step == 7:
            bench.batch.remove(sequences[0])  # the last one moves into its slot
        trees = bench.batch.propose(DraftShape(steps=3, topk=1, draft_tokens=4))
        assert trees is not None
        for sequence, drafts in zip(bench.batch.sequences, trees.tokens[:, 1:].tolist(), strict=True):
            features, _ = reference(sequence.tokens)
            with torch.inference_mode():
                assert drafts == plain_chain(bench, sequence, features[: sequence.computed], 3)
            seen.add(tuple(drafts))
        bench.batch.step_verify(trees)
    assert len(seen) > 10  # the drafter says something else each time, or this test shows nothing


def test_greedy_tokens_is_argmax_with_ties_to_the_lowest_id() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (49152, 2048, 1000, 320):
        logits = torch.randn(3, 2, size, generator=generator).to(torch.bfloat16)  # many ties
        assert torch.equal(greedy_tokens(logits), logits.float().argmax(-1))


def test_a_request_that_leaves_in_mid_decode_does_not_disturb_the_others(
    bench_of: Callable[..., Bench],
    plain_generate: Callable[[list[int], int], list[int]],
    reference: Callable[[list[int]], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    bench = bench_of()
    prompts = [[1, 2], list(range(20)), [9, 9, 9]]
    sequences = [Sequence(len(p), list(p), 12) for p in prompts]
    for sequence in sequences:
        bench.batch.admit(sequence)
        bench.batch.prefill(100)
    bench.batch.step_target_only()
    late = Sequence(30, list(range(30, 60)), 5)
    bench.batch.admit(late)
    bench.batch.prefill(7)  # half-way through its prompt when the first one leaves
    bench.batch.remove(sequences[0])
    # The last one took the slot that became free; its features, which drafts and traces are made of, came along.
    assert [s.slot for s in bench.batch.sequences] == [0, 1]
    moved = bench.batch.sequences[0]
    kept_features = bench.batch.features[0, : moved.computed].clone()
    serve(bench.batch, [], [(False, None), (False, TREE)], 7, lambda _: None)
    assert moved is sequences[2]
    torch.testing.assert_close(kept_features, reference(moved.tokens)[0][: len(kept_features)], rtol=1e-5, atol=1e-5)
    assert sequences[1].output == plain_generate(prompts[1], 12)
    assert sequences[2].output == plain_generate(prompts[2], 12)
    assert late.output == plain_generate(list(range(30, 60)), 5)


def test_catching_up_is_spread_over_steps_so_that_no_step_waits_for_a_whole_context(
    bench_of: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speculator_runtime.engines.reference.draft.CATCH_UP_ROWS", 25)
    bench = bench_of(seed=3)
    sequences = [Sequence(30, list(range(30)), 60), Sequence(40, list(range(40)), 60)]
    for sequence in sequences:
        bench.batch.admit(sequence)
        bench.batch.prefill(100)
    caught_up = []
    for _ in range(4):
        trees = bench.batch.propose(TREE)
        caught_up.append((sum(s.drafted for s in sequences), trees is not None))
        bench.batch.step_target_only()
    # 70 rows of prompt, and two more a step: 25 at a time, until what is left fits into one step.
    assert caught_up == [(25, False), (50, False), (74, True), (76, True)]
    spread = bench.batch.propose(TREE)
    bench.runner.generation += 1
    monkeypatch.setattr("speculator_runtime.engines.reference.draft.CATCH_UP_ROWS", 1000)
    at_once = bench.batch.propose(TREE)
    assert spread is not None
    assert at_once is not None
    assert spread.tokens.tolist() == at_once.tokens.tolist()
