"""The trainer's HTTP API (`TrainerSettings.port`, bearer token required except `/healthz`, `/readyz`, `/metrics`).

| route | body | answer |
|---|---|---|
| `GET /v1/status` | | `TrainerStatus` |
| `PUT /v1/directive` | `TrainerDirective` | `TrainerStatus` |
"""

from pydantic import Field

from .base import VersionedContract
from .plan import VersionRef


class TrainerDirective(VersionedContract):
    """What the operator wants of the trainer. Idempotent by generation."""

    generation: int = Field(ge=1)
    paused: bool = Field(default=False, description="Neither trains nor publishes; traces are still buffered.")
    publishing_frozen: bool = Field(default=False, description="Trains, but publishes nothing.")
    target_digest: str | None = Field(default=None, description="Samples of another target are not trained on.")


class TrainerStatus(VersionedContract):
    """Where training stands."""

    directive_generation: int = 0
    phase: str = Field(description="WaitingForTraces, Training, Paused or Failed.")
    message: str = ""
    step: int = 0
    skipped_steps: int = Field(default=0, description="Not finite or exploding updates that were not applied.")
    loss: float | None = None
    train_accept_length: float | None = Field(
        default=None, description="Teacher-forced, on training rows: flatters; for trend only."
    )
    requests_received: int = 0
    requests_dropped: int = 0
    requests_opted_out: int = 0
    buffer_samples: int = 0
    buffer_bytes: int = 0
    buffer_domains: dict[str, int] = Field(default_factory=dict)
    tokens_per_second: float | None = None
    latest: VersionRef | None = None
    published: int = Field(default=0, description="Versions this trainer published since the lineage began.")
