"""SyncPolicy: when drafters are published, and what they must show before they serve."""

from typing import Annotated, Literal

from pydantic import Field

from speculator_runtime.contracts.plan import Arm

from .base import ApiModel, DecimalString, Duration, Later, Resource, Rule, seconds


class Publish(ApiModel):
    """When the trainer publishes a version."""

    every_requests: int = Field(default=80, ge=1, description="Requests learnt from between two versions.")
    first_after_requests: int | None = Field(
        default=None, ge=1, description="Requests before the first version. By default everyRequests."
    )
    first_after_steps: int = Field(default=0, ge=0, description="Optimiser steps before the first version.")
    min_interval: Duration = Field(default="1m", description="Least time between two versions.")
    max_staleness: Annotated[Duration | None, Later()] = Field(
        default=None,
        description="Publish after this long even if fewer requests came. If absent: never for that reason.",
    )


class ArmShare(ApiModel):
    """One arm of the canary's schedule."""

    name: Arm = Field(description="TargetOnly, Stable (left out while there is none) or Candidate.")
    share: Annotated[int, Later()] = Field(default=1, ge=1, le=10, description="Blocks of this arm in a round.")


class Pause(ApiModel):
    """A pause at the end of a step."""

    duration: Duration | None = Field(
        default=None, description="How long. If absent: until somebody gives a Promote action."
    )


class CanaryStep(ApiModel):
    """How many replicas take part, and the pause after the gate has passed there."""

    rules = (
        Rule(
            "has(self.replicas) != has(self.percent)",
            "set either replicas or percent",
            lambda s: (s.replicas is None) != (s.percent is None),
        ),
    )
    replicas: int | None = Field(default=None, ge=1, le=1024, description="Replicas that run the candidate's blocks.")
    percent: int | None = Field(default=None, ge=1, le=100, description="The same in percent, rounded up.")
    pause: Pause | None = Field(default=None, description="Wait here before the next step.")


class Guardrails(ApiModel):
    """What a candidate must not make worse, however fast it is."""

    max_error_rate_increase: DecimalString = Field(
        default="0.01", description="Largest rise of the share of failed requests, against the other arms."
    )
    max_ttft_increase_percent: int = Field(
        default=25, ge=0, le=10000, description="Largest rise of the median time to first token, in percent."
    )
    min_accept_length: DecimalString | None = Field(
        default=None, description="Least accept length (bonus token included). If absent: no bound."
    )


class Canary(ApiModel):
    """The trial of a candidate: randomised blocks of the arms on the same replica, compared in pairs."""

    rules = (
        Rule(
            "duration(self.washout) < duration(self.block)",
            "washout must be shorter than block",
            lambda c: seconds(c.washout) < seconds(c.block),
        ),
        Rule(
            "self.arms.exists(a, a.name == 'Candidate') && self.arms.exists(a, a.name == 'TargetOnly')",
            "arms must have Candidate and TargetOnly: the gate compares them",
            lambda c: {Arm.CANDIDATE, Arm.TARGET_ONLY} <= {arm.name for arm in c.arms},
        ),
        Rule(
            "double(self.alpha) > 0.0 && double(self.alpha) < 0.5",
            "alpha must be above 0 and below 0.5",
            lambda c: 0 < float(c.alpha) < 0.5,
        ),
        Rule(
            "double(self.minSpeedupOverTargetOnly) > 0.0 && double(self.minSpeedupOverStable) > 0.0",
            "speedup thresholds are ratios above 0; 1 is no change",
            lambda c: float(c.min_speedup_over_target_only) > 0 and float(c.min_speedup_over_stable) > 0,
        ),
        Rule(
            "self.burnInPairs < self.maxPairs",
            "maxPairs must be above burnInPairs",
            lambda c: c.burn_in_pairs < c.max_pairs,
        ),
    )
    arms: list[ArmShare] = Field(
        default=[ArmShare(name=arm) for arm in Arm],
        min_length=2,
        max_length=3,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="What a round of blocks runs.",
    )
    block: Duration = Field(default="30s", description="Length of a block.")
    washout: Duration = Field(default="3s", description="Start of a block that is not counted.")
    min_speedup_over_target_only: DecimalString = Field(
        default="1.02", description="The lower bound of the speedup over target-only must reach this."
    )
    min_speedup_over_stable: DecimalString = Field(
        default="1.0", description="The lower bound of the speedup over the stable version must reach this."
    )
    alpha: DecimalString = Field(
        default="0.05", description="Probability of promoting a drafter that is not faster, at most."
    )
    alpha_spending: Literal["PerCandidate", "Decreasing"] = Field(
        default="PerCandidate",
        description="PerCandidate: alpha holds for each candidate. Decreasing: for all candidates together; the k-th "
        "spends 6 alpha / (pi k)^2.",
    )
    burn_in_pairs: int = Field(default=10, ge=2, le=100000, description="Pairs before the first look.")
    tightest_at_pairs: int = Field(
        default=30, ge=2, le=100000, description="Number of pairs at which the confidence bound is tightest."
    )
    max_pairs: int = Field(default=400, ge=10, le=100000, description="Inconclusive after so many pairs.")
    max_duration: Duration = Field(default="2h", description="Inconclusive after this long.")
    min_steps_per_block: int = Field(default=20, ge=1, description="A block with fewer decode steps does not count.")
    steps: list[CanaryStep] = Field(
        default=[CanaryStep(replicas=1)],
        min_length=1,
        max_length=16,
        description="How the candidate reaches the replicas; after the last step it serves on all.",
    )
    guardrails: Guardrails = Field(default_factory=Guardrails, description="What a candidate must not make worse.")
    on_inconclusive: Literal["Hold", "Reject"] = Field(
        default="Hold",
        description="When time is up without an answer: Hold (stable stays, the version may be tried again) or Reject "
        "(it is not tried again). It never promotes.",
    )
    supersede: Literal["Latest", "Queue"] = Field(
        default="Latest",
        description="Which version is tried next: the Latest (those between expire), or all in order (Queue).",
    )
    cooldown: Duration = Field(default="30s", description="Time between two runs.")


class FallbackLevels(ApiModel):
    """Where speculation is switched off."""

    bucket: Annotated[bool, Later()] = Field(default=True, description="In the engine, for a batch bucket.")
    fleet: bool = Field(default=True, description="On all replicas, by the operator.")
    freeze_training: Annotated[bool, Later()] = Field(
        default=False, description="Freeze training too, while the fleet is in fallback."
    )


class Fallback(ApiModel):
    """Target-only decoding when the stable drafter does not pay, and the way back."""

    rules = (
        Rule(
            "double(self.recoverThreshold) >= double(self.threshold)",
            "recoverThreshold must be at least threshold: going back up takes more than going down",
            lambda f: float(f.recover_threshold) >= float(f.threshold),
        ),
    )
    enabled: bool = Field(default=True, description="Fall back by itself.")
    levels: FallbackLevels = Field(default_factory=FallbackLevels, description="Where speculation is switched off.")
    threshold: DecimalString = Field(
        default="1.0", description="Fall back when the upper bound of the stable drafter's speedup is below this."
    )
    recover_threshold: DecimalString = Field(
        default="1.05", description="Come back when a probe's lower bound is above this."
    )
    window_pairs: int = Field(default=40, ge=4, le=10000, description="Latest pairs that are looked at.")
    min_pairs: int = Field(default=10, ge=2, le=10000, description="Pairs before the first look.")
    probe_interval: Duration = Field(default="10m", description="Time between two probes while in fallback.")
    probe_pairs: int = Field(default=10, ge=2, le=10000, description="Pairs of a probe.")


class Holdback(ApiModel):
    """Target-only blocks that go on after a promotion, so that the speedup shown is measured."""

    rules = (
        Rule(
            "duration(self.washout) < duration(self.block)",
            "washout must be shorter than block",
            lambda h: seconds(h.washout) < seconds(h.block),
        ),
    )
    share_percent: int = Field(
        default=5, ge=0, le=50, description="Share of time spent in target-only blocks, in percent; 0 is off."
    )
    block: Duration = Field(default="30s", description="Length of a block.")
    washout: Duration = Field(default="3s", description="Start of a block that is not counted.")


class SyncPolicySpec(ApiModel):
    """When drafters are published and what they must show; every field has a default that works."""

    publish: Publish = Field(default_factory=Publish, description="When the trainer publishes a version.")
    canary: Canary = Field(default_factory=Canary, description="The trial of a candidate.")
    fallback: Fallback = Field(default_factory=Fallback, description="Target-only when the drafter does not pay.")
    holdback: Holdback = Field(default_factory=Holdback, description="Target-only blocks after a promotion.")


class SyncPolicy(Resource):
    """When drafters are published and what they must show before they serve. Speculators name it in syncPolicyRef."""

    kind: str = "SyncPolicy"
    spec: SyncPolicySpec = Field(default_factory=SyncPolicySpec)
