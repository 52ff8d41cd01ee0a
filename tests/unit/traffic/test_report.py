"""Order and summary, on hand-made records."""

from itertools import islice

import pytest

from speculator_runtime.traffic.order import poisson_gaps, stream
from speculator_runtime.traffic.records import Prompt, Record
from speculator_runtime.traffic.report import summarise

PROMPTS = [Prompt(id=f"{d}{i}", domain=d, prompt="p") for d in ("x", "y") for i in range(3)]


def record(domain: str = "x", **fields: object) -> Record:
    given: dict[str, object] = {"started": 0.0, "seconds": 2.0, "tokens_in": 10, "tokens_out": 30}
    return Record.model_validate({"id": "a", "domain": domain, **given, **fields})


def test_sequential_order_goes_domain_by_domain_and_round_again() -> None:
    assert [p.id for p in islice(stream(PROMPTS, "sequential", 0, per_domain=2), 8)] == [
        "x0", "x1", "y0", "y1", "x2", "x0", "y2", "y0",
    ]  # fmt: skip


def test_mixed_order_sends_all_before_any_twice_and_depends_on_the_seed_only() -> None:
    first = [p.id for p in islice(stream(PROMPTS, "mixed", 3), 6)]
    assert sorted(first) == sorted(p.id for p in PROMPTS)
    assert first == [p.id for p in islice(stream(PROMPTS, "mixed", 3), 6)]
    assert first != [p.id for p in islice(stream(PROMPTS, "mixed", 4), 6)]


def test_arrivals_have_the_rate_asked_for() -> None:
    assert sum(islice(poisson_gaps(5.0, 1), 4000)) / 4000 == pytest.approx(0.2, rel=0.06)


def test_accept_length_weighs_verify_steps_not_requests() -> None:
    records = [record(accept_length=1.0, verify_steps=90), record(accept_length=3.0, verify_steps=10)]
    assert summarise(records, 4.0).overall.accept_length == pytest.approx(1.2)


def test_throughput_counts_input_and_output_per_request() -> None:
    records = [record(seconds=2.0), record(seconds=4.0)]
    assert summarise(records, 4.0).overall.request_throughput == pytest.approx((20 + 10) / 2)


def test_failures_are_counted_by_domain_and_reason_and_left_out_of_the_figures() -> None:
    records = [record(), record("y", error="HTTP 500: no", tokens_out=0, seconds=60.0)]
    summary = summarise(records, 2.0)
    assert summary.overall.failed_requests == 1
    assert summary.domains["y"].failed_requests == 1
    assert summary.errors == {"HTTP 500: no": 1}
    assert summary.overall.request_throughput == pytest.approx(20.0)


def test_prompt_lookup_is_a_ratio_of_sums() -> None:
    records = [record(prompt_lookup_tokens=tokens, prompt_lookup_steps=10) for tokens in (30, 10)]
    assert summarise(records, 1.0).overall.prompt_lookup_accept_length == 2.0


def test_an_empty_run_has_no_figures_rather_than_zeros() -> None:
    overall = summarise([], 1.0).overall
    assert (overall.accept_length, overall.ttft_p50, overall.request_throughput) == (None, None, None)


def test_tokens_per_step_counts_target_only_steps_as_one_token() -> None:
    only = record(tokens_out=31)
    verified = record(tokens_out=31, accept_length=3.0, verify_steps=10)
    half = record(tokens_out=31, accept_length=2.0, verify_steps=5)  # 10 tokens in 5 steps, 20 one by one
    figures = [summarise([r], 1.0).overall.tokens_per_step for r in (only, verified, half)]
    assert figures == pytest.approx([1.0, 3.0, 30 / 25])
