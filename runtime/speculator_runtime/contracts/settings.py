"""Typed settings of each program, one JSON file each, mounted from the Speculator's ConfigMap.

Secrets are never in these files: tokens and keys are files under `secrets_directory`, S3 credentials are the standard
AWS environment variables (or the pod's own identity).

Files under `secrets_directory`: `agent-token`, `engine-token`, `trainer-token` (bearer tokens), and for trace sockets
the CURVE pairs in Z85 `curve-trainer-public`, `curve-trainer-secret`, `curve-agent-public`, `curve-agent-secret`.
"""

import json
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from .base import Contract, VersionedContract
from .control import DraftShape


class SettingsError(Exception):
    """A settings file is missing or wrong; the message says which field and what to do."""


class Settings(VersionedContract):
    """Base of the programs' settings."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check a settings file; raises SettingsError with one line per problem."""
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise SettingsError(f"cannot read settings {path}: {error.strerror}; pass --settings FILE") from error
        except ValidationError as error:
            lines = [f"  {'.'.join(map(str, e['loc'])) or '(file)'}: {e['msg']}" for e in error.errors()]
            raise SettingsError(f"settings {path} are not valid:\n" + "\n".join(lines)) from error


class StoreSettings(Contract):
    """Where the ledger is."""

    bucket: str = Field(min_length=3)
    prefix: str = Field(default="", description="No leading or trailing slash.")
    endpoint: str | None = Field(default=None, description="URL of an S3-compatible server; None is AWS.")
    region: str = "us-east-1"
    path_style: bool = False


class DrafterSettings(Contract):
    """Shape of the drafter; the same in engine and trainer, fixed for a lineage."""

    algorithm: Literal["EAGLE3"] = "EAGLE3"
    draft_vocab_size: int = Field(
        default=32000, ge=16, description="Slots of the draft vocabulary; V and above: all of it."
    )
    intermediate_size: int | None = Field(default=None, description="MLP width; None: the target's.")
    num_attention_heads: int | None = Field(default=None, description="None: the target's.")
    num_key_value_heads: int | None = Field(default=None, description="None: the target's.")
    init_from: str | None = Field(
        default=None, description="Checkpoint directory or s3:// URL to start from; None: random."
    )
    init_seed: int = 0


class EngineSettings(Settings):
    """speculator-engine (reference engine)."""

    model: str = Field(description="Name under which the target is served.")
    target_directory: str = Field(description="Llama-family checkpoint directory, or a GGUF file.")
    drafter: DrafterSettings = Field(default_factory=DrafterSettings)
    shape: DraftShape = Field(default_factory=DraftShape)
    dtype: Literal["float64", "float32", "bfloat16"] = "bfloat16"
    host: str = "0.0.0.0"
    port: int = 8000
    control_port: int = Field(default=8001, description="Bound to 127.0.0.1.")
    max_running_requests: int = Field(default=8, ge=1)
    max_total_tokens: int = Field(default=16384, ge=64, description="Bound of the KV cache, over all requests.")
    max_context: int = Field(default=2048, ge=16)
    threads: int | None = Field(default=None, description="torch threads; None: the CPUs of the pod.")
    buckets: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    trace_endpoint: str | None = Field(
        default="ipc:///run/speculator/traces", description="The agent binds it; None: no capture."
    )
    trace_top_k: int = Field(default=64, ge=1, description="Teacher logits kept per row.")
    trace_rejected: bool = Field(default=False, description="Keep rejected branches too.")
    trace_queue: int = Field(
        default=64, ge=1, description="Traces waiting for the agent; the oldest is dropped and counted."
    )
    secrets_directory: str = "/etc/speculator/secrets"
    drain_seconds: float = 20.0


class AgentSettings(Settings):
    """speculator-agent, the sidecar."""

    host: str = "0.0.0.0"
    port: int = 8070
    engine_type: Literal["reference", "sglang"] = "reference"
    engine_url: str = Field(default="http://127.0.0.1:8001", description="The engine's control API.")
    store: StoreSettings
    work_directory: str = Field(default="/var/lib/speculator", description="Versions and unread blocks (emptyDir).")
    keep_versions: int = Field(default=3, ge=2, description="Versions kept on disk beside the two in use.")
    trace_endpoint: str = "ipc:///run/speculator/traces"
    trainer_endpoint: str | None = Field(
        default=None, description="tcp://HOST:PORT of the trainer; None: traces are dropped."
    )
    trace_queue_bytes: int = Field(default=256 << 20, ge=1 << 20)
    trace_share: float = Field(default=1.0, ge=0, le=1, description="Share of requests forwarded.")
    opt_out_default: bool = False
    secrets_directory: str = "/etc/speculator/secrets"
    pod: str = Field(default="", description="Filled from POD_NAME when empty.")
    pod_uid: str = Field(default="", description="Filled from POD_UID when empty.")


class TrainingConfig(Contract):
    """A resolved TrainingPolicy. Numbers, no strings: the operator parses."""

    loss: Literal["ForwardKL", "ReverseKL", "ReverseKLNextToken"] = "ForwardKL"
    ttt_length: int = Field(default=5, ge=1, le=8)
    ttt_decay: float = Field(default=0.8, gt=0, le=1, description="Weight of step k is decay**k.")
    learning_rate: float = Field(default=1e-4, gt=0)
    final_learning_rate: float | None = Field(
        default=None, gt=0, description="Cosine to this over decay_steps; None: constant."
    )
    decay_steps: int | None = Field(default=None, ge=1)
    warmup_steps: int = Field(default=400, ge=0)
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    gradient_clip: float = Field(default=0.5, gt=0)
    batch_size: int = Field(default=8, ge=1, description="Samples per optimiser step.")
    max_fresh_per_batch: int | None = Field(
        default=None, ge=1, description="At most this many unseen samples per step; the rest is replay."
    )
    max_sequence_length: int = Field(default=2048, ge=16)
    precision: Literal["bfloat16", "float32"] = "bfloat16"
    warmup_requests: int = Field(default=16, ge=1, description="Requests to wait for before the first step.")
    steps_per_request: float | None = Field(
        default=None, gt=0, description="Upper bound of steps per request received; None: train without pause."
    )
    buffer_bytes: int = Field(default=2 << 30, ge=1 << 20)
    buffer_domain_quota: float = Field(
        default=0.5, gt=0, le=1, description="Largest share of the buffer for one domain while others want room."
    )
    max_draft_versions_behind: int | None = Field(default=None, ge=0)
    max_age_seconds: float | None = Field(default=None, gt=0)
    checkpoint_interval_seconds: float = Field(default=60.0, gt=0)
    seed: int = 0


class PublishConfig(Contract):
    """When the trainer publishes: after so many requests, never sooner than the least interval."""

    every_requests: int = Field(default=80, ge=1)
    first_after_requests: int | None = Field(default=None, ge=1, description="For version 1; None: every_requests.")
    first_after_steps: int = Field(default=0, ge=0)
    min_interval_seconds: float = Field(default=60.0, ge=0)


class TrainerSettings(Settings):
    """speculator-trainer."""

    model: str
    model_revision: str = ""
    target_embedding: str = Field(
        default="",
        description="safetensors file or checkpoint directory with the target's embedding, norm and head; "
        "the trainer reads these tensors only, never the target's layers.",
    )
    drafter: DrafterSettings = Field(default_factory=DrafterSettings)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    publish: PublishConfig = Field(default_factory=PublishConfig)
    training_policy_sha256: str = ""
    store: StoreSettings
    host: str = "0.0.0.0"
    port: int = 8090
    trace_bind: str = "tcp://0.0.0.0:5555"
    work_directory: str = Field(default="/var/lib/speculator", description="Resume checkpoints (a volume).")
    threads: int | None = None
    secrets_directory: str = "/etc/speculator/secrets"


_S3_URL = re.compile(r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$")


class FetchSettings(Settings):
    """speculator-fetch: brings the target checkpoint into the pod before engine or trainer starts."""

    source: str = Field(description="s3://BUCKET/PREFIX, hf://ORG/NAME[@REVISION], or file:///DIRECTORY.")
    destination: str
    store: StoreSettings = Field(description="Endpoint and region for s3:// sources.")
    only: Literal["all", "embedding"] = Field(
        default="all", description="embedding: what the trainer needs, and config.json."
    )

    @model_validator(mode="after")
    def _known_source(self) -> "FetchSettings":
        scheme = self.source.split("://", 1)[0]
        if scheme not in {"s3", "hf", "file"} or (scheme == "s3" and not _S3_URL.match(self.source)):
            raise ValueError(f"source {self.source!r}: use s3://BUCKET/PREFIX, hf://ORG/NAME or file:///DIRECTORY")
        return self


def canonical_json(model: Contract) -> str:
    """The one JSON text of a contract: sorted keys, no spaces. What is hashed or compared is always this."""
    return json.dumps(model.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
