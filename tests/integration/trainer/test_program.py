"""The program itself: real sockets with CURVE, its HTTP API, kill -9 at random moments, bad settings."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import zmq

from speculator_runtime.contracts.settings import PublishConfig
from speculator_runtime.contracts.trainer import TrainerStatus
from speculator_runtime.storage import Ledger
from speculator_runtime.traces.codec import encode
from speculator_runtime.traces.keys import agent_keys
from support.trainer_traces import TOKEN, make_trace

INTERVAL_STEPS = 60
"""More steps than this target's trainer can take within a checkpoint interval of the test and one checkpoint."""


class Agent:
    """The agents' end of the trace socket."""

    def __init__(self, settings) -> None:
        keys = agent_keys(Path(settings.secrets_directory))
        self.socket = zmq.Context.instance().socket(zmq.PUSH)
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
        self.socket.curve_serverkey = keys.peer
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, 20_000)
        self.socket.connect(settings.trace_bind)
        self.sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            self.socket.send(encode(make_trace(self.sent)))
            self.sent += 1

    def close(self) -> None:
        self.socket.close(0)


class Program:
    def __init__(self, settings, folder: Path) -> None:
        self.file = folder / "trainer.json"
        self.file.write_text(settings.model_dump_json())
        self.url = f"http://127.0.0.1:{settings.port}"
        self.log = folder / "log"
        self.process: subprocess.Popen | None = None

    def start(self) -> "Program":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "speculator_runtime.training.main", "--settings", str(self.file)],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return self

    def status(self) -> TrainerStatus | None:
        try:
            answer = httpx.get(f"{self.url}/v1/status", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=5)
        except httpx.TransportError:
            return None
        return TrainerStatus.model_validate_json(answer.text)

    def until(self, condition, seconds=60.0) -> TrainerStatus:
        end = time.monotonic() + seconds
        while True:
            status = self.status()
            if status is not None and condition(status):
                return status
            assert self.process.poll() is None, f"the trainer ended:\n{self.log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"it did not happen in time, last status {status}"
            time.sleep(0.02)

    def kill(self, how=signal.SIGKILL) -> int:
        self.process.send_signal(how)
        return self.process.wait(30)


@pytest.fixture
def program(settings, tmp_path):
    made = []

    def make(changed=settings):
        made.append(Program(changed, tmp_path))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.kill()


@pytest.fixture
def agent(settings):
    end = Agent(settings)
    yield end
    end.close()


def test_it_trains_on_what_agents_send_and_publishes(program, settings, agent):
    running = program().start()
    running.until(lambda s: s.phase == "WaitingForTraces")
    agent.send(6)
    status = running.until(lambda s: s.published == 1)
    assert status.latest.version == 1
    assert (status.requests_received, status.buffer_domains) == (6, {"code": 3, "sql": 3})
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(f"{running.url}/v1/status").status_code == 401
    assert httpx.put(f"{running.url}/v1/directive", json={"generation": 1}).status_code == 401
    assert httpx.get(f"{running.url}/healthz").text == "ok\n"
    paused = httpx.put(f"{running.url}/v1/directive", json={"generation": 2, "paused": True}, headers=headers)
    assert paused.json()["directive_generation"] == 2
    assert httpx.put(f"{running.url}/v1/directive", json={"generation": 1}, headers=headers).status_code == 409
    assert httpx.put(f"{running.url}/v1/directive", json={"typo": 1}, headers=headers).status_code == 422
    text = httpx.get(f"{running.url}/metrics").text
    assert "speculator_trainer_published_total 1.0" in text
    assert 'speculator_trainer_buffer_samples{domain="sql"} 3.0' in text
    running.until(lambda s: s.phase == "Paused")
    assert running.kill(signal.SIGTERM) == 0
    assert sorted(p.name for p in (Path(settings.work_directory) / "checkpoints").iterdir())


def test_kill_9_at_any_moment_loses_at_most_one_interval_and_repeats_no_version(program, settings, agent):
    """Five lives, each ended at a random moment, while requests keep coming."""
    busy = settings.model_copy(
        update={
            "training": settings.training.model_copy(
                update={"checkpoint_interval_seconds": 0.3, "steps_per_request": 4.0}
            ),
            "publish": PublishConfig(every_requests=5, min_interval_seconds=0),
        }
    )
    dice = random.Random(4)
    running = program(busy)
    ledger = Ledger(settings.store)
    seen: dict[int, str] = {}
    reached = 0
    for _ in range(5):
        running.start()
        begun = running.until(lambda s: True).step
        # A checkpoint is due every 0.3 s; a step takes several milliseconds here.
        assert begun >= reached - INTERVAL_STEPS, f"went on at step {begun}, had reached {reached}"
        agent.send(12)
        running.until(lambda s, begun=begun: s.step >= begun + 2)
        time.sleep(dice.uniform(0.0, 1.0))
        last = running.status()
        reached = last.step if last else reached
        running.kill()
        for manifest in ledger.list_versions():
            digest = ledger.read_stored(manifest.version).sha256
            assert seen.setdefault(manifest.version, digest) == digest, "a published version was written again"
    fresh = Ledger(settings.store)
    versions = [m.version for m in fresh.list_versions()]
    assert len(versions) >= 3
    assert fresh.verify_chain() == []
    manifests = fresh.list_versions()
    assert all(b.parent.version == a.version for a, b in itertools.pairwise(manifests))
    digests = [m.sha256 for m in manifests]
    assert len(set(digests)) == len(digests), "two versions hold the same weights"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target_embedding": "/nowhere"}, "was the target fetched"),
        ({"secrets_directory": "/nowhere"}, "cannot read the CURVE key"),
        ({"host": "256.0.0.1"}, "256.0.0.1"),
    ],
    ids=str,
)
def test_what_keeps_it_from_starting_is_said_in_one_line(program, settings, change, words):
    broken = program(settings.model_copy(update=change)).start()
    assert broken.process.wait(60) == 1
    text = broken.log.read_text()
    assert words in text
    assert "Traceback" not in text


def test_a_missing_bucket_is_said_at_the_start(program, settings):
    broken = program(
        settings.model_copy(update={"store": settings.store.model_copy(update={"bucket": "no-such-bucket"})})
    ).start()
    assert broken.process.wait(60) == 1
    assert "no-such-bucket" in broken.log.read_text()
