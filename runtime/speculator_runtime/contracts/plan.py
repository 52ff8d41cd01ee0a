"""Plan, state and blocks: what the operator and an agent say to each other.

Agent's HTTP API (`AgentSettings.port`, bearer token required except `/healthz`, `/readyz` and `/metrics`):

| route | body | answer |
|---|---|---|
| `PUT /v1/plan` | `Plan` | `AgentState`; a generation older than the one in force is refused with 409 |
| `GET /v1/state` | | `AgentState` |
| `GET /v1/blocks?generation=G&after=I` | | `BlockPage`: blocks of plan generation G with index > I, ascending |

All of it is idempotent by generation and index: a restart on either side asks again and loses nothing.
"""

from enum import StrEnum

from pydantic import Field, model_validator

from .base import Contract, VersionedContract
from .control import BucketCounters, DecodeMode, DraftShape


class Arm(StrEnum):
    """What a block runs."""

    TARGET_ONLY = "TargetOnly"
    STABLE = "Stable"
    CANDIDATE = "Candidate"


class VersionRef(Contract):
    """A drafter version by number and content: the number says which, the digest proves it."""

    version: int = Field(ge=0)
    sha256: str = Field(description="Lower-case hex sha256 of the version's model.safetensors.")


class Switchback(Contract):
    """A randomised schedule: each round runs every arm once, in an order drawn from the seed.

    Every block lasts `block_seconds`; its first `washout_seconds` are not counted. After a round the agent runs the
    plan's resting arm for `rest_seconds` (holdback: a small share of blocks in a long rest).
    """

    arms: tuple[Arm, ...] = Field(min_length=2, max_length=3)
    block_seconds: float = Field(gt=0)
    washout_seconds: float = Field(ge=0)
    rest_seconds: float = Field(default=0.0, ge=0)
    seed: int
    max_rounds: int | None = Field(
        default=None, ge=1, description="Stop after this many rounds and rest; None goes on."
    )

    @model_validator(mode="after")
    def _washout_leaves_time(self) -> "Switchback":
        if self.washout_seconds >= self.block_seconds:
            raise ValueError(
                f"washout_seconds ({self.washout_seconds}) must be below block_seconds ({self.block_seconds})"
            )
        if len(set(self.arms)) != len(self.arms):
            raise ValueError(f"arms must be distinct, got {self.arms}")
        return self


class Plan(VersionedContract):
    """What one replica shall do until a plan with a higher generation comes."""

    generation: int = Field(ge=1, description="Grows with every change of the plan of this Speculator.")
    stable: VersionRef | None = Field(default=None, description="None: no version was promoted yet.")
    candidate: VersionRef | None = None
    resting_arm: Arm = Field(default=Arm.TARGET_ONLY, description="What runs when no block runs.")
    switchback: Switchback | None = Field(default=None, description="None: the resting arm runs all the time.")
    shape: DraftShape = Field(default_factory=DraftShape)
    target_only_above: int | None = None

    @model_validator(mode="after")
    def _arms_are_backed(self) -> "Plan":
        used = {self.resting_arm, *(self.switchback.arms if self.switchback else ())}
        if Arm.STABLE in used and self.stable is None:
            raise ValueError("the plan uses the Stable arm but names no stable version")
        if Arm.CANDIDATE in used and self.candidate is None:
            raise ValueError("the plan uses the Candidate arm but names no candidate")
        return self


class LoadStatus(StrEnum):
    """How far the agent is with a version on this replica."""

    PENDING = "Pending"
    FETCHED = "Fetched"
    LOADED = "Loaded"
    REFUSED = "Refused"


class VersionState(Contract):
    """One version as this replica sees it. REFUSED is final for this digest; PENDING may be retried by the agent."""

    ref: VersionRef
    status: LoadStatus
    reason: str = Field(default="", description="CamelCase; empty unless refused or waiting.")
    message: str = ""


class AgentState(VersionedContract):
    """What the replica runs, and whether it follows its plan."""

    pod: str
    pod_uid: str
    plan_generation: int = Field(description="Generation applied; 0 before the first plan.")
    engine_healthy: bool
    engine: str = ""
    engine_epoch: str = ""
    mode: DecodeMode
    arm: Arm
    loaded: VersionRef | None = None
    live_digest: str = ""
    target_digest: str = ""
    versions: list[VersionState] = Field(default_factory=list)
    blocks_until: int = Field(
        default=-1, description="Highest block index of the plan generation in force; -1 for none."
    )
    running_requests: int = 0
    traces_forwarded: int = 0
    traces_dropped: int = 0
    last_error: str = ""


class Block(VersionedContract):
    """What one block of one arm on one replica yielded. Written once, never changed."""

    pod: str
    pod_uid: str
    generation: int
    index: int = Field(ge=0, description="Grows by one per block within a plan generation and pod.")
    round: int = Field(ge=0, description="The arms of one round are compared with each other.")
    arm: Arm
    version: VersionRef | None = Field(default=None, description="None for target-only.")
    started: float = Field(description="Unix seconds at the end of the washout.")
    seconds: float = Field(ge=0, description="Counted wall seconds, washout excluded.")
    buckets: dict[int, BucketCounters] = Field(default_factory=dict)
    domains: dict[str, BucketCounters] = Field(default_factory=dict)
    requests_finished: int = 0
    requests_failed: int = 0
    ttft_p50_seconds: float | None = None
    ttft_p99_seconds: float | None = None
    request_tokens_per_second_p50: float | None = None
    valid: bool = Field(
        default=True, description="False when the engine restarted, the swap failed or the plan changed."
    )
    invalid_reason: str = ""


class BlockPage(VersionedContract):
    """Blocks in ascending order of index."""

    pod: str
    pod_uid: str
    generation: int
    blocks: list[Block]
