"""A small real HTTP server that speaks both APIs, one token a word, so that every figure is known beforehand."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Server:
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    words: list[str] = field(default_factory=lambda: ["one", "two", "three", "four", "five"])
    gap: float = 0.002
    health: int = 200
    incremental_ids: bool = False
    fail_when: str = ""
    break_off_when: str = ""
    in_flight: int = 0
    most_in_flight: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(state.health)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"])).decode()
            with state.lock:
                state.bodies.append(json.loads(raw))
                state.in_flight += 1
                state.most_in_flight = max(state.most_in_flight, state.in_flight)
            try:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client was interrupted
                    self._answer(raw)
            finally:
                with state.lock:
                    state.in_flight -= 1

        def _answer(self, raw: str) -> None:
            if state.fail_when and state.fail_when in raw:
                text = b'{"error": "the queue is full"}'
                self.send_response(503)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for index in range(len(state.words)):
                time.sleep(state.gap)
                self._event(json.dumps(self._piece(index)))
                if state.break_off_when and state.break_off_when in raw:
                    self.close_connection = True
                    self._chunk(b"")
                    return
            self._event("[DONE]")
            self._chunk(b"")

        def _piece(self, index: int) -> dict[str, Any]:
            last = index == len(state.words) - 1
            usage = {"prompt_tokens": 7, "completion_tokens": index + 1}
            if self.path == "/generate":
                meta = {**usage, "finish_reason": {"type": "stop"} if last else None}
                if last:
                    meta |= {"spec_accept_length": 2.0, "spec_verify_ct": 2}
                return {
                    "text": " ".join(state.words[: index + 1]),
                    "output_ids": [100 + index] if state.incremental_ids else list(range(100, 101 + index)),
                    "meta_info": meta,
                }
            piece: dict[str, Any] = {"choices": [{"delta": {"content": state.words[index] + " "}}]}
            return {**piece, "usage": usage} if last else piece

        def _event(self, data: str) -> None:
            self._chunk(f"data: {data}\n\n".encode())

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    state.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield state
    httpd.shutdown()
    httpd.server_close()
