"""OpenAI's API as clients use it: answers, streams, errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.engine_server import Running


@pytest.fixture(scope="module")
def plain(tiny_directory: Path) -> Callable[[str, int], str]:
    """Greedy text of transformers' own generate in float32."""
    model = AutoModelForCausalLM.from_pretrained(tiny_directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_directory)

    def generate(prompt: str, new_tokens: int) -> str:
        ids = torch.tensor([tokenizer.encode(prompt)])
        out = model.generate(ids, max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        text: str = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        return text

    return generate


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Objects of a finished event stream, which must end with [DONE]."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_completion_is_the_targets_greedy_text_with_usage(engine: Running, plain: Callable[[str, int], str]) -> None:
    body = {"model": "tiny", "prompt": "SELECT name", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = engine.http.post("/v1/completions", json=body).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == plain("SELECT name", 12)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 12


def test_chat_uses_the_targets_template(engine: Running, plain: Callable[[str, int], str]) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    body = {"messages": messages, "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    answer = engine.http.post("/v1/chat/completions", json=body).json()
    prompt = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": plain(prompt, 10)}


@pytest.mark.parametrize("mode", ["TargetOnly", "Speculative"])
def test_streamed_pieces_add_up_to_the_whole_answer_and_usage_comes_last(engine: Running, mode: str) -> None:
    engine.control.put("/control/mode", json={"mode": mode}).raise_for_status()
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    whole = engine.http.post("/v1/chat/completions", json=body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = engine.http.post("/v1/chat/completions", json=body | options)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    assert ("sglext" in chunks[-1]) == (mode == "Speculative")


def test_a_stop_string_ends_the_answer_before_it(engine: Running, plain: Callable[[str, int], str]) -> None:
    text = plain("def add(", 30)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    body = {"prompt": "def add(", "max_tokens": 30, "temperature": 0, "ignore_eos": True, "stop": [stop, "never ever"]}
    answer = engine.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 30
    streamed = events(engine.http.post("/v1/completions", json=body | {"stream": True}))
    assert "".join(c["choices"][0]["text"] for c in streamed) == text[: text.index(stop)]


def test_a_seed_makes_a_sampled_answer_repeatable(engine: Running) -> None:
    body = {"prompt": "The quick", "max_tokens": 20, "temperature": 1.3, "ignore_eos": True}

    def text(**more: Any) -> str:
        result: str = engine.http.post("/v1/completions", json=body | more).json()["choices"][0]["text"]
        return result

    assert text(seed=7) == text(seed=7)
    assert len({text(seed=seed) for seed in range(4)}) == 4
    assert len({text() for _ in range(4)}) > 1


def test_models_lists_the_one_that_is_served(engine: Running) -> None:
    assert [m["id"] for m in engine.http.get("/v1/models").json()["data"]] == ["tiny"]


@pytest.mark.parametrize(
    ("change", "status", "parameter", "words"),
    [
        ({"model": "gpt-4"}, 400, "model", "serves 'tiny'"),
        ({"logprobs": 3}, 400, "logprobs", "leave the parameter out"),
        ({"temprature": 0.3}, 400, "temprature", "not supported"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty", "not supported"),
        ({"n": 2}, 400, "n", "send several requests"),
        ({"temperature": -1}, 400, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, 400, "top_p", "greater than 0"),
        ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 1000}, 400, "max_tokens", "ask for at most"),
        ({"prompt": "word " * 400}, 400, "prompt", "serves contexts of 256 tokens"),
        ({"prompt": ""}, 400, "prompt", "empty"),
        ({"prompt": ["a", "b"]}, 400, "prompt", "send several requests"),
        ({"prompt": [5, 400]}, 400, "input_ids", "vocabulary of 320"),
        ({"stop": [""]}, 400, "stop", "none of them empty"),
    ],
)
def test_what_cannot_be_served_is_an_error_that_names_it(
    engine: Running, change: dict[str, Any], status: int, parameter: str, words: str
) -> None:
    response = engine.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 4} | change)
    error = response.json()["error"]
    assert response.status_code == status
    assert error["type"] == "invalid_request_error"
    assert error["param"] == parameter
    assert words in error["message"]


def test_parameters_at_values_that_change_nothing_are_accepted(engine: Running) -> None:
    harmless = {
        "n": 1,
        "user": "me",
        "logit_bias": None,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "echo": False,
    }
    body = {"prompt": "hello", "max_tokens": 2, "metadata": {"a": "b"}, **harmless}
    assert engine.http.post("/v1/completions", json=body).status_code == 200


def test_a_body_that_is_not_json_is_told_so(engine: Running) -> None:
    response = engine.http.post("/v1/completions", content="{oops", headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "not JSON" in response.json()["error"]["message"]


def test_images_are_refused(engine: Running) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    response = engine.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [part]}]})
    assert response.status_code == 400
    assert "only text is supported" in response.json()["error"]["message"]
