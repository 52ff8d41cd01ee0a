"""One replica as it runs in a pod, on this machine: the real engine and the real agent as processes of their own."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import torch

from speculator_runtime.contracts.plan import AgentState, BlockPage, Plan, VersionRef
from speculator_runtime.contracts.settings import AgentSettings, DrafterSettings, EngineSettings, StoreSettings
from speculator_runtime.drafter.checkpoint import save_checkpoint
from speculator_runtime.engines.reference.engine import initial_drafter
from speculator_runtime.engines.reference.target import load_target
from speculator_runtime.storage import Ledger, describe_files
from speculator_runtime.traces.keys import write_key_files
from support.s3server import free_port
from support.samples import make_manifest
from support.tiny_target import make_tiny_target

AGENT_TOKEN = "agent-secret"


def eventually(condition: Callable[[], object], seconds: float = 60.0, what: str = "it") -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds:.0f} s"
        time.sleep(0.05)


@dataclass
class Replica:
    """Engine, agent and their files below `root`. Either may be killed and started again."""

    root: Path
    store: StoreSettings
    engine_port: int = field(default_factory=free_port)
    control_port: int = field(default_factory=free_port)
    agent_port: int = field(default_factory=free_port)
    trainer_port: int = field(default_factory=free_port)
    processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.secrets = self.root / "secrets"
        self.secrets.mkdir(parents=True)
        write_key_files(self.secrets)
        (self.secrets / "agent-token").write_text(AGENT_TOKEN)
        (self.secrets / "engine-token").write_text("engine-secret")
        self.target = make_tiny_target(self.root / "target")
        ipc = f"ipc://{self.root}/traces"
        self.engine_settings = EngineSettings(
            model="tiny",
            target_directory=str(self.target),
            drafter=DrafterSettings(draft_vocab_size=512),
            dtype="float32",
            host="127.0.0.1",
            port=self.engine_port,
            control_port=self.control_port,
            threads=1,
            trace_endpoint=ipc,
            secrets_directory=str(self.secrets),
            drain_seconds=1.0,
        )
        self.agent_settings = AgentSettings(
            host="127.0.0.1",
            port=self.agent_port,
            engine_url=f"http://127.0.0.1:{self.control_port}",
            store=self.store,
            work_directory=str(self.root / "work"),
            trace_endpoint=ipc,
            trainer_endpoint=f"tcp://127.0.0.1:{self.trainer_port}",
            secrets_directory=str(self.secrets),
            pod="engine-0",
            pod_uid="uid-0",
        )
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.agent_port}",
            headers={"Authorization": f"Bearer {AGENT_TOKEN}"},
            timeout=10,
            trust_env=False,
        )

    # Processes

    def start_engine(self) -> None:
        self._start("engine", "speculator_runtime.engines.reference.main", self.engine_settings.model_dump_json())
        eventually(lambda: self._ok(f"http://127.0.0.1:{self.engine_port}/health"), 120, "the engine's start")

    def start_agent(self) -> None:
        self._start("agent", "speculator_runtime.agent.main", self.agent_settings.model_dump_json())
        eventually(lambda: self._ok(f"http://127.0.0.1:{self.agent_port}/readyz"), 60, "the agent's start")

    def kill(self, name: str) -> None:
        """kill -9."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes.pop(name).wait()

    def stop(self) -> None:
        self.client.close()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def _start(self, name: str, module: str, settings: str) -> None:
        path = self.root / f"{name}.json"
        path.write_text(settings)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, "--settings", str(path)], stdout=log, stderr=log, env=environment
            )

    def _ok(self, url: str) -> bool:
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} ended:\n{self.log(name)[-3000:]}"
        try:
            return httpx.get(url, timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    # The agent's API

    def put_plan(self, plan: Plan) -> httpx.Response:
        return self.client.put("/v1/plan", json=plan.model_dump(mode="json"))

    def state(self) -> AgentState:
        response = self.client.get("/v1/state")
        response.raise_for_status()
        return AgentState.model_validate_json(response.content)

    def blocks(self, generation: int, after: int = -1) -> BlockPage:
        response = self.client.get("/v1/blocks", params={"generation": generation, "after": after})
        response.raise_for_status()
        return BlockPage.model_validate_json(response.content)

    # Versions

    def publish(self, seed: int, spoil: float | None = None) -> VersionRef:
        """A random drafter of the engine's own shape as the next version; `spoil` is written over one weight."""
        settings = self.engine_settings.model_copy(update={"drafter": DrafterSettings(init_seed=seed)})
        loaded, _ = load_target(self.target, "float32", torch.device("cpu"))
        drafter, vocabulary, _ = initial_drafter(settings, loaded)
        ledger = Ledger(self.store)
        version = ledger.claim_version()
        directory = self.root / f"version-{version}"
        save_checkpoint(directory, drafter, vocabulary)
        if spoil is not None:
            from safetensors.torch import load_file, save_file

            tensors = load_file(directory / "model.safetensors")
            tensors["fc.weight"][0, 0] = spoil
            save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return ledger.publish(version, directory, make_manifest(version, describe_files(directory))).ref


class Traffic:
    """Keeps so many requests in flight until closed; counts what came back, and keeps what was answered."""

    def __init__(self, port: int, width: int = 2, tokens: int = 24) -> None:
        self.answers: dict[str, set[str]] = {}
        self.finished = 0
        self.failures: list[str] = []
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._tokens = tokens
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(width)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, number: int) -> None:
        prompts = [f"SELECT name FROM orders WHERE total > {n}" for n in range(4)]
        with httpx.Client(timeout=60, trust_env=False) as client:
            for turn in range(1_000_000):
                if self._stop.is_set():
                    return
                prompt = prompts[(turn + number) % len(prompts)]
                body = {"model": "tiny", "prompt": prompt, "max_tokens": self._tokens, "temperature": 0}
                try:
                    response = client.post(self._url, json=body)
                    text = response.json()["choices"][0]["text"] if response.status_code == 200 else None
                except httpx.HTTPError as error:
                    response, text = error, None
                with self._lock:
                    if text is None:
                        self.failures.append(repr(response))
                    else:
                        self.finished += 1
                        self.answers.setdefault(prompt, set()).add(text)
                if text is None:
                    time.sleep(0.1)
