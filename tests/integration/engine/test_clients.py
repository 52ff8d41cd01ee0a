"""Clients that leave, prompts that wait, drafters that fail: nobody else notices."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.engine_server import Running, engine_settings, running_engine

LONG = {"max_new_tokens": 240, "temperature": 0, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _target_only(engine: Running) -> None:
    engine.control.put("/control/mode", json={"mode": "TargetOnly"}).raise_for_status()


def until(what: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def running(engine: Running) -> int:
    count: int = engine.control.get("/control/state").json()["running_requests"]
    return count


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_and_counts_as_no_failure(engine: Running, stream: bool) -> None:
    until(lambda: running(engine) == 0)
    before = engine.stats()
    body = {"input_ids": [1, 2, 3], "sampling_params": LONG, "stream": stream}
    if stream:
        with engine.http.stream("POST", "/generate", json=body) as response:
            next(response.iter_lines())
    else:
        with httpx.Client(base_url=engine.http.base_url, timeout=0.15) as hasty, pytest.raises(httpx.ReadTimeout):
            hasty.post("/generate", json=body)
    until(lambda: running(engine) == 0)
    after = engine.stats()
    assert after.requests_finished == before.requests_finished
    assert after.requests_failed == before.requests_failed
    tokens = sum(b.tokens for b in after.buckets.values()) - sum(b.tokens for b in before.buckets.values())
    assert tokens < 239


def test_more_requests_than_slots_all_get_their_answers(engine: Running) -> None:
    prompts = [[i + 1, i + 2] for i in range(12)]
    alone = [engine.generate(p, 20)["output_ids"] for p in prompts]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda p: engine.generate(p, 20)["output_ids"], prompts))
    assert together == alone
    assert max(engine.stats().buckets) <= 4


def test_a_long_prompt_does_not_hold_up_a_running_stream(tiny_directory: Path, tmp_path: Path) -> None:
    """Prompts are computed in parts, a decode step between two of them."""
    settings = engine_settings(tiny_directory, tmp_path, max_context=2000, max_total_tokens=8000)
    with running_engine(settings) as engine:
        before = engine.stats()
        started, arrived = threading.Event(), list[float]()

        def stream() -> None:
            body = {"input_ids": [1, 2], "sampling_params": LONG | {"max_new_tokens": 400}, "stream": True}
            with httpx.stream("POST", f"{engine.http.base_url}/generate", json=body, timeout=60) as response:
                for _ in response.iter_lines():
                    arrived.append(time.perf_counter())
                    started.set()

        thread = threading.Thread(target=stream)
        thread.start()
        started.wait(10)
        begun = time.perf_counter()
        engine.generate([3] * 1900, 2)
        ended = time.perf_counter()
        thread.join()
        assert before.requests_failed == engine.stats().requests_failed
        # 1,900 rows are 8 parts: at least one token of the stream came between two of them.
        assert sum(begun < at < ended for at in arrived) >= 7


def test_a_drafter_that_fails_costs_no_request_and_is_switched_off_until_the_next_mode_call(
    engine: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = engine.generate([7, 7, 7], 30)["output_ids"]
    before = engine.engine.loop.stats.drafting_faults

    def broken(*_: Any) -> None:
        raise RuntimeError("the drafter is broken")

    with monkeypatch.context() as patched:
        patched.setattr(engine.engine.service._runner, "propose", broken)
        engine.control.put("/control/mode", json={"mode": "Speculative"}).raise_for_status()
        assert engine.generate([7, 7, 7], 30)["output_ids"] == expected
        assert engine.engine.loop.stats.drafting_faults - before == 3
        assert engine.control.get("/control/state").json()["mode"] == "TargetOnly"
    answer = engine.control.put("/control/mode", json={"mode": "Speculative"}).json()
    assert answer["mode"] == "Speculative"
    assert engine.generate([7, 7, 7], 30)["meta_info"]["spec_verify_ct"] > 0


def test_a_drafter_whose_logits_are_not_finite_falls_back_too(engine: Running) -> None:
    runner = engine.engine.service._runner
    weight = runner.drafter.norm.weight
    kept = weight.clone()
    expected = engine.generate([7, 7, 7], 10)["output_ids"]
    faults = engine.engine.loop.stats.drafting_faults
    try:
        weight.fill_(float("nan"))
        engine.control.put("/control/mode", json={"mode": "Speculative"}).raise_for_status()
        assert engine.generate([7, 7, 7], 10)["output_ids"] == expected
        assert engine.engine.loop.stats.drafting_faults > faults
    finally:
        weight.copy_(kept)


def test_a_step_that_fails_ends_the_requests_in_it_with_an_error_and_the_engine_goes_on(
    engine: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine.stats().requests_failed

    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory, say")

    with monkeypatch.context() as patched:
        patched.setattr(engine.engine.loop._batch, "step_target_only", broken)
        body = {"prompt": "hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        response = engine.http.post("/v1/completions", json=body)
        assert response.status_code == 500
        assert "out of memory, say" in response.json()["error"]["message"]
        streamed = engine.http.post("/v1/completions", json=body | {"stream": True})
        assert '"error"' in streamed.text
    assert engine.stats().requests_failed == before + 2
    assert engine.generate([1], 3)["meta_info"]["completion_tokens"] == 3


@pytest.fixture
def leaving(tiny_directory: Path, tmp_path: Path) -> Iterator[Running]:
    with running_engine(engine_settings(tiny_directory, tmp_path, drain_seconds=20.0)) as engine:
        yield engine


def test_draining_ends_what_runs_refuses_what_is_new_and_fails_health(leaving: Running) -> None:
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(leaving.generate, [1, 2], 200)
        until(lambda: running(leaving) == 1)
        drained = pool.submit(leaving.engine.loop.drain, 20.0)
        until(lambda: leaving.engine.loop.draining)
        assert leaving.http.get("/health").status_code == 503
        refused = leaving.http.post("/generate", json={"input_ids": [1]})
        assert refused.status_code == 503
        assert "another replica" in refused.json()["error"]["message"]
        assert len(answer.result(30)["output_ids"]) == 200
        drained.result(30)
