"""The program itself: start-up errors that say what to do, and SIGTERM."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from speculator_runtime.engines.reference.main import main
from support.engine_server import engine_settings


@contextmanager
def start(settings: Path) -> "Iterator[subprocess.Popen[str]]":
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "speculator_runtime.engines.reference.main", "--settings", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def write_settings(target: Path, work: Path, **changes: Any) -> Path:
    path = work / "engine.json"
    path.write_text(engine_settings(target, work, **changes).model_dump_json())
    return path


def test_sigterm_lets_a_running_request_end(tiny_directory: Path, tmp_path: Path) -> None:
    path = write_settings(tiny_directory, tmp_path)
    port = json.loads(path.read_text())["port"]
    with start(path) as process:
        end = time.monotonic() + 120
        while True:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/health").text == "ok"
                break
            except httpx.ConnectError:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
        body = {"prompt": "hi", "max_tokens": 200, "ignore_eos": True, "stream": True}
        url = f"http://127.0.0.1:{port}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason": "length"' in rest[-2]
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("token", "cannot read the control token"),
        ("target", "does not exist; was the target fetched?"),
        ("empty target", "give a Llama-family checkpoint directory or a GGUF file"),
        ("other family", "model_type 'gpt2'"),
        ("drafter", "fetch the version again"),
        ("shape", "can draft; at most 3"),
        ("settings", "max_context"),
        ("port", "Address already in use; stop what uses it or set another port"),
    ],
)
def test_a_wrong_setting_ends_the_start_with_one_message_that_says_what_to_do(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    if what == "other family":
        (other / "config.json").write_text('{"model_type": "gpt2"}')
    changes: dict[str, dict[str, Any]] = {
        "target": {"target_directory": str(tmp_path / "nowhere")},
        "empty target": {"target_directory": str(other)},
        "other family": {"target_directory": str(other)},
        "drafter": {"drafter": {"init_from": str(tmp_path / "nothing")}},
        "shape": {"shape": {"steps": 2, "topk": 1, "draft_tokens": 8}},
    }
    path = write_settings(tiny_directory, tmp_path, **changes.get(what, {}))
    if what == "token":
        (tmp_path / "secrets" / "engine-token").unlink()
    if what == "settings":
        path.write_text(path.read_text().replace('"max_context":256', '"max_context":2'))
    monkeypatch.setattr(sys, "argv", ["speculator-engine", "--settings", str(path)])
    with socket.socket() as taken:
        if what == "port":
            taken.bind(("127.0.0.1", json.loads(path.read_text())["port"]))
            taken.listen()
        with pytest.raises(SystemExit) as exit_:
            main()
    assert words in str(exit_.value)
    assert str(exit_.value).startswith("speculator-engine: ")
