"""The engine's control API: what the agent may ask of an engine, whichever engine it is.

Served on the pod's loopback only, bearer token required (`EngineSettings.control_port`).

| route | body | answer |
|---|---|---|
| `GET /control/state` | | `EngineState` |
| `PUT /control/drafter` | `LoadDrafter` | `EngineState`; 422 with `EngineError` when the checkpoint is refused |
| `PUT /control/mode` | `SetMode` | `EngineState`, once the mode holds for the next decode step |
| `GET /control/stats` | | `EngineStats`, counters since the engine started |

A refused drafter leaves the live one untouched. Every call is idempotent.
"""

from enum import StrEnum

from pydantic import Field

from .base import Contract, VersionedContract


class DecodeMode(StrEnum):
    """How the engine decodes."""

    TARGET_ONLY = "TargetOnly"
    SPECULATIVE = "Speculative"


class DraftShape(Contract):
    """The draft tree of one verify step, in SGLang's terms."""

    steps: int = Field(default=3, ge=1, le=16, description="Draft forward passes per verify step (depth of the tree).")
    topk: int = Field(default=1, ge=1, le=16, description="Branches kept at each depth; 1 is a chain.")
    draft_tokens: int = Field(
        default=4, ge=2, le=64, description="Nodes verified per step, the root included; steps + 1 for a chain."
    )


class LoadDrafter(VersionedContract):
    """Load the drafter checkpoint in a directory the engine can read."""

    version: int = Field(ge=0, description="Version number the weights belong to; 0 is the random day-0 drafter.")
    directory: str = Field(description="Holds model.safetensors and config.json.")
    sha256: str = Field(description="Lower-case hex sha256 of model.safetensors; checked before anything is loaded.")


class SetMode(VersionedContract):
    """Switch the mode, and the draft shape for speculative decoding."""

    mode: DecodeMode
    shape: DraftShape | None = Field(default=None, description="None keeps the shape in force.")
    target_only_above: int | None = Field(
        default=None, ge=1, description="Batches larger than this decode target-only even in Speculative mode."
    )


class RefusalReason(StrEnum):
    """Why an engine refused a drafter checkpoint."""

    MISSING = "Missing"
    CORRUPT = "Corrupt"
    DIGEST_MISMATCH = "DigestMismatch"
    TENSOR_NAMES = "TensorNames"
    TENSOR_SHAPES = "TensorShapes"
    TENSOR_DTYPES = "TensorDtypes"
    NOT_FINITE = "NotFinite"
    VOCABULARY_MAP = "VocabularyMap"
    INTERNAL = "Internal"


class EngineError(VersionedContract):
    """A refusal, with a message that says what to do."""

    reason: RefusalReason
    message: str


class EngineState(VersionedContract):
    """What the engine runs right now."""

    engine: str = Field(description="`reference` or `sglang`, with its version, for example `reference/0.1.0`.")
    healthy: bool
    mode: DecodeMode
    shape: DraftShape
    target_only_above: int | None = None
    version: int = Field(description="Version of the live drafter weights.")
    sha256: str = Field(description="sha256 of the checkpoint file the live weights came from.")
    live_digest: str = Field(
        description="sha256 over the live parameters (sorted names, float32) and d2t: proof of what is loaded."
    )
    target_digest: str = Field(description="sha256 over the target checkpoint's files.")
    running_requests: int = 0
    waiting_requests: int = 0


class BucketCounters(Contract):
    """Monotone counters of decode steps at one batch bucket; two readings' difference describes the time between."""

    steps: int = 0
    sequences: int = Field(default=0, description="Sum over steps of the sequences in the step.")
    tokens: int = Field(default=0, description="Tokens committed, bonus tokens included.")
    seconds: float = Field(default=0.0, description="Wall seconds of the steps: drafting, verifying, drafter prefill.")
    accept_histogram: dict[int, int] = Field(
        default_factory=dict,
        description="Tokens committed per sequence and verify step (bonus included) -> count.",
    )

    def minus(self, earlier: "BucketCounters") -> "BucketCounters":
        """Counts between an earlier reading and this one; raises ValueError if the engine restarted in between."""
        if self.steps < earlier.steps or self.tokens < earlier.tokens:
            raise ValueError("counters went backwards: the engine restarted between the two readings")
        histogram = {
            length: count - earlier.accept_histogram.get(length, 0)
            for length, count in self.accept_histogram.items()
            if count > earlier.accept_histogram.get(length, 0)
        }
        return BucketCounters(
            steps=self.steps - earlier.steps,
            sequences=self.sequences - earlier.sequences,
            tokens=self.tokens - earlier.tokens,
            seconds=self.seconds - earlier.seconds,
            accept_histogram=histogram,
        )


class EngineStats(VersionedContract):
    """Counters since the engine started. A bucket's key is the largest number of sequences it holds."""

    epoch: str = Field(description="Changes when the engine restarts; counters of two epochs are never subtracted.")
    monotonic_seconds: float
    buckets: dict[int, BucketCounters] = Field(default_factory=dict)
    requests_finished: int = 0
    requests_failed: int = 0
    ttft_seconds: list[float] = Field(
        default_factory=list, description="Of requests finished lately, oldest first, at most 256."
    )
    request_tokens_per_second: list[float] = Field(
        default_factory=list, description="(T_in + T_out) / t_request of requests finished lately (at most 256)."
    )
    domains: dict[str, BucketCounters] = Field(
        default_factory=dict,
        description="The same counters by request domain (a request's share of a step: seconds are not attributed, 0).",
    )
    traces_captured: int = 0
    traces_dropped: int = 0
