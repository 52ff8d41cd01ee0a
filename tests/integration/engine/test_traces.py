"""Capture end to end: traces leave over a real socket, opted-out requests do not, and serving never waits."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from speculator_runtime.traces.codec import Trace, decode
from support.engine_server import Running, engine_settings, running_engine


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/traces"


@pytest.fixture
def agent(endpoint: str) -> Iterator["zmq.Socket[bytes]"]:
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.bind(endpoint)
    yield socket
    context.destroy(linger=0)


@pytest.fixture
def capturing(tiny_directory: Path, tmp_path: Path, endpoint: str) -> Iterator[Running]:
    settings = engine_settings(
        tiny_directory, tmp_path, trace_endpoint=endpoint, trace_queue=3, trace_top_k=8, trace_rejected=True
    )
    with running_engine(settings) as engine:
        yield engine


def receive(agent: "zmq.Socket[bytes]", seconds: float = 10) -> Trace | None:
    return decode(agent.recv()) if agent.poll(int(seconds * 1000)) else None


def test_every_finished_request_becomes_one_trace_with_its_labels(
    agent: "zmq.Socket[bytes]", capturing: Running
) -> None:
    capturing.control.put("/control/mode", json={"mode": "Speculative"}).raise_for_status()
    params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True, "custom_params": {"domain": "math"}}
    body = {"input_ids": [4, 5, 6], "rid": "mine", "sampling_params": params}
    answer = capturing.http.post("/generate", json=body).json()
    trace = receive(agent)
    assert trace is not None
    assert trace.header.request_id == "mine"
    assert trace.header.domain == "math"
    assert trace.header.mode == "Speculative"
    assert trace.header.target_digest == capturing.control.get("/control/state").json()["target_digest"]
    assert trace.header.arrived <= trace.header.finished <= time.time()
    assert trace.tensors["tokens"].tolist() == [4, 5, 6, *answer["output_ids"]]
    assert len(trace.tensors["hidden_rows"]) >= 14
    assert len(trace.tensors["teacher_rows"]) >= 12
    # Drafts accepted past the request's last token are neither rejected nor counted as accepted.
    rejected = answer["meta_info"]["spec_draft_token_num"] - trace.header.accepted_draft_tokens
    assert rejected - 3 <= len(trace.tensors["tree_tokens"]) <= rejected
    assert capturing.stats().traces_captured == 1


def test_a_request_that_opted_out_leaves_no_trace(agent: "zmq.Socket[bytes]", capturing: Running) -> None:
    capturing.generate([1, 2], 4, custom_params={"opt_out": True})
    capturing.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "opt_out": True}).raise_for_status()
    capturing.generate([3, 4], 4, custom_params={"opt_out": False})
    trace = receive(agent)
    assert trace is not None
    assert trace.tensors["tokens"][:2].tolist() == [3, 4]
    assert trace.header.opt_out is False
    assert receive(agent, 0.3) is None


def test_without_an_agent_serving_goes_on_and_the_oldest_traces_are_counted_as_dropped(capturing: Running) -> None:
    for i in range(8):
        capturing.generate([1, 2, i + 1], 4)
    stats = capturing.stats()
    assert stats.requests_finished == 8
    assert stats.traces_captured == 8
    assert stats.traces_dropped >= 8 - 3 - 1
