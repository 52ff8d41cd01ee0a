"""Putting an engine together from its settings, and taking it down again. Any bad setting is a StartError."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from fastapi import FastAPI

from speculator_runtime.contracts.settings import EngineSettings
from speculator_runtime.drafter.checkpoint import CheckpointRefused, read_checkpoint
from speculator_runtime.drafter.config import DrafterConfig, UnsupportedTarget
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.vocabulary import VocabularyMap
from speculator_runtime.traces.sender import TraceSender

from .batch import Batch, CaptureOptions
from .draft import DrafterRunner
from .frontend import Frontend, Limits
from .http_app import control_app, public_app
from .loop import EngineLoop
from .metrics import registry_of
from .prompts import TargetTokenizer
from .service import ControlService, ShapeError, check_shape
from .stats import Statistics
from .target import Target, TargetError, load_target

log = logging.getLogger(__name__)


class StartError(Exception):
    """The engine cannot start; the message says what to do."""


@dataclass
class Engine:
    """A running engine without its sockets."""

    loop: EngineLoop
    service: ControlService
    frontend: Frontend
    public: FastAPI
    control: FastAPI
    sender: TraceSender | None

    def close(self, drain_seconds: float) -> None:
        """Let running requests end within `drain_seconds`, abort the rest, send the last traces."""
        self.loop.drain(drain_seconds)
        if self.sender is not None:
            self.sender.close()


def start_engine(settings: EngineSettings) -> Engine:
    """Load target and drafter and start decoding. Raises StartError."""
    token_file = checked_token_file(Path(settings.secrets_directory))
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        check_shape(settings.shape)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        target, raw_tokenizer = load_target(Path(settings.target_directory), settings.dtype, device)
        drafter, vocabulary, sha256 = initial_drafter(settings, target)
    except (TargetError, UnsupportedTarget, CheckpointRefused, ShapeError) as error:
        raise StartError(str(error)) from error
    capture = CaptureOptions(settings.trace_top_k, settings.trace_rejected) if settings.trace_endpoint else None
    batch = Batch(target, settings.max_running_requests, settings.max_context, capture)
    # A float32 drafter also under a bfloat16 target: at one layer it costs little, and its live digest is then
    # comparable with the checkpoint's.
    dtype = torch.float64 if settings.dtype == "float64" else torch.float32
    runner = DrafterRunner(drafter, vocabulary, target.embedding, batch.features, dtype)
    batch.proposer = runner
    sender = TraceSender(settings.trace_endpoint, settings.trace_queue) if settings.trace_endpoint else None
    stats = Statistics(settings.buckets, settings.max_running_requests)
    loop = EngineLoop(batch, stats, settings.max_total_tokens, sender)
    loop.policy.shape = settings.shape
    service = ControlService(loop, runner, target, sender, sha256)
    tokenizer = TargetTokenizer(raw_tokenizer, target.vocab_size, target.config.eos_token_id)
    limits = Limits(settings.max_context, settings.max_total_tokens)
    frontend = Frontend(loop, tokenizer, limits, capture=sender is not None)
    loop.start()
    log.info(
        "serving %s: %d layers, H %d, V %d, %s on %s, captured layers %s, draft vocabulary %d",
        settings.model, target.layers, target.hidden_size, target.vocab_size, settings.dtype, device,
        target.capture_layers, drafter.config.draft_vocab_size,
    )  # fmt: skip
    return Engine(
        loop=loop,
        service=service,
        frontend=frontend,
        public=public_app(frontend, settings.model, registry_of(service, stats)),
        control=control_app(service, token_file),
        sender=sender,
    )


def initial_drafter(settings: EngineSettings, target: Target) -> tuple[Eagle3Drafter, VocabularyMap, str]:
    """The drafter of day 0: random from `init_seed`, or read from `init_from`; with its map and file digest."""
    chosen = settings.drafter
    config = DrafterConfig.from_target(target.config.to_dict(), chosen)
    if chosen.init_from is not None:
        if "://" in chosen.init_from:
            raise StartError(
                f"drafter.init_from is {chosen.init_from!r}: the engine reads directories only; have the init "
                "container fetch it and name the directory"
            )
        checkpoint = read_checkpoint(Path(chosen.init_from), config)
        drafter = Eagle3Drafter(config, checkpoint.vocabulary.used)
        drafter.load_state_dict(checkpoint.state, strict=True)
        return drafter, checkpoint.vocabulary, checkpoint.sha256
    vocabulary = VocabularyMap.initial(config.vocab_size, config.draft_vocab_size, config.eos_token_ids)
    drafter = Eagle3Drafter(config, vocabulary.used)
    used = vocabulary.tokens[: vocabulary.used]
    drafter.reset(chosen.init_seed, target.head_weight[used].float().cpu(), target.norm_weight.float().cpu())
    return drafter, vocabulary, ""


def checked_token_file(directory: Path) -> Path:
    """The file of the engine's bearer token; raises StartError where there is none yet."""
    path = directory / "engine-token"
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise StartError(
            f"cannot read the control token {path}: {error.strerror}; mount the Speculator's Secret "
            "(NAME-tokens) there, or write any secret word into that file"
        ) from error
    if not token:
        raise StartError(f"the control token {path} is empty; write a secret word into it")
    return path
