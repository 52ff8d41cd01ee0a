"""Status of a Speculator: what the operator found and did. Never an input of the user.

Phase is one word for people, derived from the conditions. Numbers that are not whole are decimal strings.
"""

from datetime import datetime
from enum import StrEnum
from typing import Literal, Self

from pydantic import Field

from speculator_runtime.contracts.control import DecodeMode
from speculator_runtime.contracts.ledger import Interval
from speculator_runtime.contracts.plan import VersionRef

from .base import AnyObject, DecimalString, Sha256, StatusModel, decimal_string, number

REJECTED_LIMIT = 64
"""Digests kept in status; older rejections are still in the ledger."""


class ConditionType(StrEnum):
    """Conditions of a Speculator."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    DRAFTER_COMPATIBLE = "DrafterCompatible"
    CANARY_PASSING = "CanaryPassing"
    SPECULATION_ACTIVE = "SpeculationActive"
    TRAINER_HEALTHY = "TrainerHealthy"
    PAUSED = "Paused"
    DEGRADED = "Degraded"


class Phase(StrEnum):
    """One word for where a Speculator stands."""

    PENDING = "Pending"
    STARTING = "Starting"
    LEARNING = "Learning"
    CANARY = "Canary"
    STABLE = "Stable"
    FALLBACK = "Fallback"
    TARGET_ONLY = "TargetOnly"
    PINNED = "Pinned"
    PAUSED = "Paused"
    DEGRADED = "Degraded"
    TERMINATING = "Terminating"


class Condition(StatusModel):
    """A metav1.Condition."""

    type: str = Field(max_length=316, description="Name of the condition, CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=1024, description="Why, in CamelCase."
    )
    message: str = Field(default="", max_length=32768, description="Why and what to do, for people.")
    last_transition_time: datetime = Field(description="When the status last changed.")
    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec it was found for.")


class VersionRefStatus(StatusModel):
    """A drafter version by number and content."""

    version: int = Field(ge=0, description="Version number; 0 is the random drafter of day 0.")
    sha256: Sha256 = Field(description="sha256 of the version's model.safetensors.")

    @classmethod
    def of(cls, ref: VersionRef) -> Self:
        """From the contract's reference."""
        return cls(version=ref.version, sha256=ref.sha256)

    def ref(self) -> VersionRef:
        """As the contract's reference."""
        return VersionRef(version=self.version, sha256=self.sha256)


class Speedup(StatusModel):
    """A measured speedup with its always-valid confidence bounds; 1 is no change."""

    estimate: DecimalString = Field(description="Geometric mean over the pairs.")
    lower: DecimalString = Field(description="Lower confidence bound.")
    upper: DecimalString | None = Field(default=None, description="Upper confidence bound; absent if unbounded.")
    pairs: int = Field(ge=0, description="Pairs of blocks it rests on.")

    @classmethod
    def of(cls, interval: Interval) -> Self:
        """From the ledger's interval; raises ValueError for an estimate that is not a finite number."""
        bounded = interval.upper != float("inf")
        return cls(
            estimate=decimal_string(interval.estimate),
            lower=decimal_string(interval.lower),
            upper=decimal_string(interval.upper) if bounded else None,
            pairs=interval.pairs,
        )

    def interval(self) -> Interval:
        """As the ledger's interval."""
        return Interval(
            estimate=number(self.estimate),
            lower=number(self.lower),
            upper=number(self.upper) if self.upper is not None else float("inf"),
            pairs=self.pairs,
        )


class PinnedPolicy(StatusModel):
    """A policy as it was when the run began."""

    name: str = Field(default="", max_length=253, description="Name of the policy; empty if the defaults were used.")
    generation: int = Field(default=0, ge=0, description="Its metadata.generation.")
    sha256: Sha256 = Field(default="", description="sha256 of its spec, defaults filled in.")


class Run(StatusModel):
    """The rollout under way. Policies are those it started with: edits apply to the next run."""

    id: str = Field(max_length=128, description="Names this run in events and verdicts.")
    candidate: VersionRefStatus = Field(description="The version on trial.")
    stable: VersionRefStatus | None = Field(default=None, description="What it was compared with when it began.")
    started_at: datetime = Field(description="When the run began.")
    alpha: DecimalString = Field(description="Probability of a false promotion that this candidate may spend.")
    ordinal: int = Field(ge=1, description="The how-manieth candidate of this Speculator it is.")
    step: int = Field(default=0, ge=0, description="Index of the canary step under way.")
    step_started_at: datetime | None = Field(default=None, description="When that step began.")
    paused_since: datetime | None = Field(default=None, description="Since when a pause of the step holds it.")
    plan_generation: int = Field(default=0, ge=0, description="First plan generation of this run.")
    training_policy: PinnedPolicy = Field(default_factory=PinnedPolicy, description="TrainingPolicy of the start.")
    sync_policy: PinnedPolicy = Field(default_factory=PinnedPolicy, description="SyncPolicy of the start.")


class LastAction(StatusModel):
    """The command that was last carried out or refused."""

    id: str = Field(max_length=64, description="spec.rollout.action.id.")
    type: str = Field(max_length=32, description="What was asked.")
    result: Literal["Done", "Refused", "Pending"] = Field(description="How it ended.")
    message: str = Field(default="", max_length=4096, description="What was done, or why not.")
    at: datetime | None = Field(default=None, description="When.")


class RejectedVersion(StatusModel):
    """A drafter that is not tried again unless somebody asks for it."""

    version: int = Field(ge=0, description="Version number.")
    sha256: Sha256 = Field(description="sha256 of its model.safetensors.")
    reason: str = Field(default="", max_length=256, description="Why it was rejected, in CamelCase.")


class FallbackStatus(StatusModel):
    """Whether speculation was switched off because it did not pay."""

    active: bool = Field(default=False, description="True while replicas decode target-only by themselves.")
    since: datetime | None = Field(default=None, description="When it began.")
    reason: str = Field(default="", max_length=256, description="Why, in CamelCase.")
    last_probe: datetime | None = Field(default=None, description="When speculation was last tried again.")


class TrainerSummary(StatusModel):
    """Where training stands, as the trainer last said."""

    phase: str = Field(default="", max_length=64, description="WaitingForTraces, Training, Paused or Failed.")
    message: str = Field(default="", max_length=4096, description="What the trainer says about it.")
    step: int = Field(default=0, ge=0, description="Optimiser steps done.")
    requests_received: int = Field(default=0, ge=0, description="Traces received.")
    requests_dropped: int = Field(default=0, ge=0, description="Traces lost on the way or to the buffer's bound.")
    buffer_samples: int = Field(default=0, ge=0, description="Samples in the buffer.")
    published: int = Field(default=0, ge=0, description="Versions published since the lineage began.")
    latest_version: int | None = Field(default=None, ge=0, description="The newest version it published.")
    train_accept_length: DecimalString | None = Field(
        default=None, description="Accept length on training rows: flatters, for the trend only."
    )


class SpeculatorStatus(StatusModel):
    """What the operator found and did."""

    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that this status is about.")
    phase: Phase = Field(default=Phase.PENDING, description="One word, derived from the conditions.")
    message: str = Field(default="", max_length=4096, description="What is going on or waited for, in one sentence.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="Conditions; Ready is the one to wait for.",
    )
    replicas: int = Field(default=0, ge=0, json_schema_extra={"format": "int32"}, description="Engine pods that exist.")
    ready_replicas: int = Field(
        default=0, ge=0, json_schema_extra={"format": "int32"}, description="Engine pods that serve."
    )
    selector: str = Field(default="", max_length=1024, description="Label selector of the engine pods, for scaling.")
    mode: DecodeMode | None = Field(default=None, description="How the replicas decode at rest.")
    stable: VersionRefStatus | None = Field(default=None, description="The version that serves; absent before any.")
    candidate: VersionRefStatus | None = Field(default=None, description="The version on trial.")
    step: str = Field(default="", max_length=32, description="Canary step under way, for example 1/4.")
    speedup: Speedup | None = Field(
        default=None, description="Measured speedup over target-only: the candidate's in a run, else the stable one's."
    )
    target_digest: str = Field(default="", max_length=128, description="Digest of the target that serves.")
    plan_generation: int = Field(default=0, ge=0, description="Generation of the newest plan given to the replicas.")
    directive_generation: int = Field(default=0, ge=0, description="Generation of the newest directive to the trainer.")
    candidates_tried: int = Field(
        default=0, ge=0, description="Runs begun so far; the next candidate's ordinal is one more."
    )
    run: Run | None = Field(default=None, description="The rollout under way.")
    rollout: AnyObject = Field(
        default_factory=dict,
        description="What the rollout must remember over a restart of the operator. Read the other fields instead.",
    )
    cooldown_until: datetime | None = Field(default=None, description="No run begins before this.")
    fallback: FallbackStatus | None = Field(default=None, description="Whether speculation was switched off, and why.")
    last_action: LastAction | None = Field(default=None, description="The command last carried out or refused.")
    rejected_digests: list[RejectedVersion] = Field(
        default_factory=list,
        max_length=REJECTED_LIMIT,
        description="Versions not tried again unless asked for, newest last.",
    )
    latest_version: int = Field(default=0, ge=0, description="The newest version seen in the bucket.")
    trainer: TrainerSummary | None = Field(default=None, description="Where training stands.")
