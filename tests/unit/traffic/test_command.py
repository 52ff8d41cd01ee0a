"""speculator-traffic as its users run it: the command, against a real socket."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from speculator_runtime.traffic.main import app
from support.tiny_target import make_tiny_target

from .conftest import Server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_one_record_per_request_and_a_summary(server: Server, tmp_path: Path) -> None:
    result = run(
        "--url", server.url, "--requests", "6", "--domains", "sql,code",
        "--records", str(tmp_path / "r.jsonl"), "--summary", str(tmp_path / "s.json"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    records = records_of(tmp_path / "r.jsonl")
    assert len(records) == 6
    assert all(r["tokens_in"] == 7 and r["tokens_out"] == 5 and not r["error"] for r in records)
    assert all(0 < r["ttft"] < r["seconds"] and r["tpot"] > 0 for r in records)
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["overall"]["requests"] == 6
    assert summary["overall"]["failed_requests"] == 0
    assert summary["overall"]["accept_length"] == 2.0
    assert summary["overall"]["request_throughput"] == pytest.approx(sum(12 / r["seconds"] for r in records) / 6)
    assert set(summary["domains"]) <= {"sql", "code"}
    assert "bonus token included" in summary["conventions"]["accept_length"]


def test_the_domain_travels_with_the_request(server: Server) -> None:
    run("--url", server.url, "--requests", "1", "--domains", "sql")
    assert server.bodies[0]["sampling_params"]["custom_params"]["domain"] == "sql"


def test_chat_completions_are_streamed_and_measured(server: Server, tmp_path: Path) -> None:
    result = run(
        "--url", server.url, "--requests", "2", "--api", "chat", "--model", "m", "--temperature", "0.5",
        "--records", str(tmp_path / "r.jsonl"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    body = server.bodies[0]
    assert (body["model"], body["stream"], body["temperature"]) == ("m", True, 0.5)
    record = records_of(tmp_path / "r.jsonl")[0]
    assert (record["tokens_in"], record["tokens_out"]) == (7, 5)
    assert record["accept_length"] is None


def test_files_are_sent_in_order_one_domain_after_another(server: Server, tmp_path: Path) -> None:
    lines = [{"id": f"{d}{i}", "domain": d, "source": "x", "prompt": f"p {d}{i}"} for d in ("b", "a") for i in (0, 1)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run("--url", server.url, "--prompts", str(tmp_path / "p.jsonl"), "--order", "sequential", "--concurrency", "1")
    assert [b["sampling_params"]["custom_params"]["prompt_id"] for b in server.bodies] == ["b0", "b1", "a0", "a1"]


def test_concurrency_is_kept_and_not_exceeded(server: Server) -> None:
    server.gap = 0.02
    run("--url", server.url, "--requests", "12", "--concurrency", "3")
    assert server.most_in_flight == 3


def test_poisson_arrivals_do_not_wait_for_answers(server: Server) -> None:
    server.gap = 0.2  # an answer takes a second, 20 arrive meanwhile
    begun = time.monotonic()
    run("--url", server.url, "--requests", "20", "--rate", "40")
    assert server.most_in_flight >= 10
    assert time.monotonic() - begun < 5


def test_a_refused_request_is_counted_and_never_sent_again(server: Server, tmp_path: Path) -> None:
    lines = [{"id": name, "prompt": f"prompt {name}"} for name in ("good", "bad", "fine")]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    server.fail_when = "prompt bad"
    result = run("--url", server.url, "--prompts", str(tmp_path / "p.jsonl"), "--summary", str(tmp_path / "s.json"))
    assert result.exit_code == 1
    assert len(server.bodies) == 3
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["overall"]["failed_requests"] == 1
    assert summary["errors"] == {'HTTP 503: {"error": "the queue is full"}': 1}


def test_an_answer_that_breaks_off_is_a_failure(server: Server, tmp_path: Path) -> None:
    server.break_off_when = "sampling_params"
    result = run("--url", server.url, "--requests", "2", "--records", str(tmp_path / "r.jsonl"))
    assert result.exit_code == 1
    assert "ended before [DONE]" in records_of(tmp_path / "r.jsonl")[0]["error"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "not JSON"),
        ('{"id": "a"}', "prompt: Field required"),
        ('{"id": "a", "prompt": ""}', "prompt: String should have at least 1 character"),
        ("", "holds no prompts"),
    ],
)
def test_a_bad_line_is_named_with_file_and_reason(server: Server, tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    result = run("--url", server.url, "--prompts", str(path))
    assert result.exit_code == 2
    assert str(path) in result.output
    assert message in result.output
    assert not server.bodies


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "localhost:8000"), "it looks like http://HOST:8000"),
        (("--url", "http://127.0.0.1:1"), "cannot reach http://127.0.0.1:1"),
        (("--url", "http://x", "--domains", "law"), "the built-in domains are math, sql"),
        (("--url", "http://x", "--rate", "0"), "--rate 0.0: it must be positive"),
        (("--url", "http://x", "--prompts", "/nowhere.jsonl"), "cannot read prompts from /nowhere.jsonl"),
        (("--url", "http://x", "--tokenizer", "/nowhere"), "--tokenizer /nowhere: no such directory"),
    ],
)
def test_bad_arguments_say_what_to_do(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_server_that_is_not_ready_is_said_so(server: Server) -> None:
    server.health = 503
    assert "not ready yet" in run("--url", server.url).output


def test_interrupt_ends_with_a_summary_and_cancelled_requests_are_no_failures(server: Server, tmp_path: Path) -> None:
    server.gap = 0.1
    command = [sys.executable, "-m", "speculator_runtime.traffic.main", "--url", server.url, "--duration", "60",
               "--summary", str(tmp_path / "s.json")]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    deadline = time.monotonic() + 20
    while len(server.bodies) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    summary = json.loads((tmp_path / "s.json").read_text())
    assert process.returncode == 0
    assert summary["overall"]["failed_requests"] == 0
    assert summary["cancelled_requests"] >= 1
    assert "accept length" in output


@pytest.mark.parametrize("incremental", [False, True])
def test_prompt_lookup_is_counted_on_the_tokens_the_server_returned(
    server: Server, tmp_path: Path, incremental: bool
) -> None:
    server.incremental_ids = incremental  # servers send all ids so far, or the new ones only
    target = make_tiny_target(tmp_path / "target", layers=1, hidden=8, heads=1, kv_heads=1)
    records = tmp_path / "r.jsonl"
    run("--url", server.url, "--requests", "1", "--tokenizer", str(target), "--records", str(records))
    record = records_of(records)[0]
    assert record["prompt_lookup_tokens"] == 4  # five came back, the first one from the prefill
    assert 1 <= record["prompt_lookup_steps"] <= 4
    assert isinstance(server.bodies[0]["input_ids"], list)
    assert server.bodies[0]["input_ids"][0] == 1  # <|im_start|>: the chat template was applied
