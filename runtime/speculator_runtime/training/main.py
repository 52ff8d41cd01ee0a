"""`speculator-trainer`: receives traces, trains the drafter, publishes versions."""

import argparse
import importlib.metadata
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import uvicorn
import zmq

from speculator_runtime.contracts.settings import SettingsError, TrainerSettings
from speculator_runtime.drafter.checkpoint import Checkpoint, CheckpointRefused
from speculator_runtime.drafter.config import DrafterConfig, UnsupportedTarget
from speculator_runtime.storage import Ledger, StoreError
from speculator_runtime.traces.errors import TraceKeyError
from speculator_runtime.traces.keys import trainer_keys
from speculator_runtime.traces.receiver import TraceReceiver

from .api import make_app
from .buffer import SampleBuffer
from .intake import Intake
from .learner import Learner
from .lineage import open_lineage
from .publishing import Publisher
from .target import TargetTensorsError, load_target_tensors
from .trainer import Trainer
from .uploads import CheckpointUploads

log = logging.getLogger("speculator.trainer")

_STOP_SECONDS = 15.0
# oneDNN keeps what it compiled for every shape it met. Batches hardly ever repeat a shape, so that its default of 1,024
# entries holds gigabytes in bfloat16 on a CPU (measured: 30 MB more with every step). Read before its first product.
_ONEDNN_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


class Program:
    """The trainer's threads: one receives, one trains. A thread that fails ends the program: kubelet restarts it."""

    def __init__(self, trainer: Trainer, receiver: TraceReceiver, on_failure: Callable[[], None]) -> None:
        self._trainer = trainer
        self._receiver = receiver
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self.failed = False
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            for name, work in (("intake", self._receive), ("training", trainer.run))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def alive(self) -> bool:
        """Whether all threads run."""
        return not self.failed and all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End training after the step under way, with a last checkpoint on disk and in S3."""
        self._stopping.set()
        self._trainer.stop()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        if not self._trainer.uploads.close(_STOP_SECONDS):
            log.warning("the last checkpoint is on disk, but its copy to S3 did not end in time")

    def _receive(self) -> None:
        try:
            while not self._stopping.is_set():
                trace = self._receiver.receive(timeout=0.5)
                if trace is not None and self._trainer.intake.accept(trace):
                    self._trainer.notify()
        finally:
            self._receiver.close()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("thread %s failed", threading.current_thread().name)
            self.failed = True
            self._on_failure()


def make_trainer(settings: TrainerSettings) -> Trainer:
    """All but threads and sockets. Raises TargetTensorsError, UnsupportedTarget, CheckpointRefused, StoreError."""
    torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
    target = load_target_tensors(Path(settings.target_embedding or "/models/target"))
    config = DrafterConfig.from_target(target.config, settings.drafter)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def make_learner(start: Checkpoint | None) -> Learner:
        return Learner(config, settings.training, target, settings.drafter.init_seed, start, device)

    # The trainer's Deployment has one replica and strategy Recreate: there is one writer.
    ledger = Ledger(settings.store, single_writer=True)
    lineage = open_lineage(settings, config, ledger, make_learner)
    buffer = SampleBuffer(settings.training)
    version = importlib.metadata.version("speculator-operator")
    publisher = Publisher(settings, ledger, version, os.environ.get("POD_NAME", ""), lambda: datetime.now(UTC))
    intake = Intake(config, settings.training.max_sequence_length, buffer)
    return Trainer(settings, lineage, buffer, intake, publisher, CheckpointUploads(ledger))


def serve(settings: TrainerSettings) -> bool:
    """Until SIGTERM (True) or until a thread fails (False)."""
    secrets = Path(settings.secrets_directory)
    trainer_keys(secrets)
    listener = _listen(settings.host, settings.port)
    trainer = make_trainer(settings)
    receiver = TraceReceiver(settings.trace_bind, lambda: trainer_keys(secrets))

    def end() -> None:
        server.should_exit = True

    program = Program(trainer, receiver, end)
    app = make_app(trainer, program.alive, secrets / "trainer-token")
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
        )
    )
    log.info("traces on %s, status on %s:%d", receiver.endpoint, settings.host, settings.port)
    # uvicorn raises the signal that ended it again, for whoever had a handler before: ours lets the last checkpoint be.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, lambda *_: None)
    program.start()
    try:
        server.run(sockets=[listener])
    finally:
        program.stop()
    return not program.failed


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError that names host and port."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 after SIGTERM; 1 with one sentence when it cannot start, or after a thread failed."""
    parser = argparse.ArgumentParser(prog="speculator-trainer", description="Train the drafter from traces.")
    parser.add_argument("--settings", type=Path, default=Path("/etc/speculator/config/trainer.json"))
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for name in _ONEDNN_CACHES:
        os.environ.setdefault(name, "64")
    for chatty in ("botocore", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        return 0 if serve(TrainerSettings.load(arguments.settings)) else 1
    except (
        SettingsError,
        StoreError,
        TraceKeyError,
        TargetTensorsError,
        UnsupportedTarget,
        CheckpointRefused,
        OSError,
        zmq.ZMQError,
    ) as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
