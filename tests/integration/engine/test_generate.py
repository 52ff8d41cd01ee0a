"""SGLang's /generate, health and metrics."""

import json

import pytest

from support.engine_server import Running


def test_generate_answers_in_sglangs_shape(engine: Running) -> None:
    engine.control.put("/control/mode", json={"mode": "Speculative"}).raise_for_status()
    params = {
        "max_new_tokens": 10,
        "temperature": 0,
        "ignore_eos": True,
        "custom_params": {"domain": "sql", "prompt_id": "x"},
    }
    answer = engine.http.post("/generate", json={"text": "SELECT", "rid": "my-1", "sampling_params": params}).json()
    meta = answer["meta_info"]
    assert meta["id"] == "my-1"
    assert meta["completion_tokens"] == len(answer["output_ids"]) == 10
    assert meta["finish_reason"] == {"type": "length", "length": 10}
    assert meta["e2e_latency"] > 0
    # The first token comes from the prompt's own forward; each verify step adds its bonus and what it accepted.
    assert meta["spec_verify_ct"] * meta["spec_accept_length"] == pytest.approx(9, abs=3)
    assert engine.stats().domains["sql"].tokens >= 9


def test_target_only_answers_say_nothing_about_speculation(engine: Running) -> None:
    engine.control.put("/control/mode", json={"mode": "TargetOnly"}).raise_for_status()
    assert "spec_verify_ct" not in engine.generate([1, 2, 3], 4)["meta_info"]


def test_generate_streams_cumulative_text_and_ids(engine: Running) -> None:
    params = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [1, 2, 3], "sampling_params": params}
    whole = engine.http.post("/generate", json=body).json()
    lines = [x for x in engine.http.post("/generate", json=body | {"stream": True}).text.splitlines() if x]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    assert [len(c["output_ids"]) for c in chunks] == sorted(len(c["output_ids"]) for c in chunks)
    assert all(c["meta_info"]["finish_reason"] is None for c in chunks[:-1])
    assert chunks[-1]["text"] == whole["text"]
    assert chunks[-1]["output_ids"] == whole["output_ids"]
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] == "length"


def test_a_stop_token_ends_the_request_and_is_named(engine: Running) -> None:
    whole = engine.generate([1, 2, 3], 20)
    stop = whole["output_ids"][6]
    until = whole["output_ids"].index(stop) + 1
    answer = engine.generate([1, 2, 3], 20, stop_token_ids=[stop])
    assert answer["output_ids"] == whole["output_ids"][:until]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert whole["text"].startswith(answer["text"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "exactly one of text and input_ids"),
        ({"text": "a", "input_ids": [1]}, "exactly one of text and input_ids"),
        ({"text": ["a", "b"]}, "send several requests"),
        ({"text": "a", "sampling_params": {"max_tokens": 3}}, "max_tokens"),
        ({"text": "a", "sampling_params": {"min_p": 0.1}}, "min_p"),
        ({"text": "a", "return_logprob": True}, "return_logprob"),
        ({"text": "a", "sampling_params": {"custom_params": {"domain": ""}}}, "domain"),
    ],
)
def test_generate_refuses_what_it_cannot_do(engine: Running, body: dict[str, object], words: str) -> None:
    response = engine.http.post("/generate", json=body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_an_id_that_is_in_use_is_refused_and_free_again_afterwards(engine: Running) -> None:
    body = {"input_ids": [1, 2], "rid": "twice", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
    with engine.http.stream("POST", "/generate", json=body | {"stream": True}) as first:
        lines = first.iter_lines()
        next(lines)
        second = engine.http.post("/generate", json=body)
        assert second.status_code == 400
        assert "'twice' is running already" in second.json()["error"]["message"]
        for _ in lines:
            pass
    body["sampling_params"] = {"max_new_tokens": 2}
    assert engine.http.post("/generate", json=body).status_code == 200


def test_health_routes(engine: Running) -> None:
    assert engine.http.get("/health").text == "ok"
    assert engine.http.get("/health_generate").text == "ok"


def test_metrics_agree_with_the_control_apis_counters(engine: Running) -> None:
    engine.generate([1, 2, 3], 5)
    stats = engine.stats()
    text = engine.http.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["speculator_engine_requests_finished_total"]) == stats.requests_finished
    assert float(values['speculator_engine_decode_tokens_total{bucket="1"}']) == stats.buckets[1].tokens
    assert "speculator_engine_drafter_version" in values
