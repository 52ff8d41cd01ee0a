"""TrainingPolicy: how the drafter learns. Resolved for the trainer by `resolve.training_config`."""

from typing import Annotated, Literal

from pydantic import Field

from .base import ApiModel, DecimalString, Duration, Later, Quantity, Resource, Rule


class Discard(ApiModel):
    """Learning from tokens that verification rejected."""

    weight: Annotated[DecimalString, Later()] = Field(
        default="0", description="Weight of the loss on rejected branches; 0 is off."
    )
    top_k: Annotated[int, Later()] = Field(
        default=0, ge=0, le=1024, description="Only branches among the target's k most likely tokens; 0 is all."
    )


class RewardWeighting(ApiModel):
    """Weighting of samples by reward."""

    enabled: Annotated[bool, Later()] = Field(default=False, description="Weight samples by their reward.")
    max_weight: Annotated[DecimalString, Later()] = Field(default="5", description="Largest weight of a sample.")
    deadline: Annotated[Duration, Later()] = Field(
        default="10m", description="A sample without a reward by then has weight 1."
    )


class Loss(ApiModel):
    """What is minimised."""

    type: Literal["ForwardKL", "ReverseKL", "ReverseKLNextToken"] = Field(
        default="ForwardKL",
        description="ForwardKL: KL(target || drafter). ReverseKL: KL(drafter || target). ReverseKLNextToken: ReverseKL "
        "plus next-token prediction on accepted tokens.",
    )
    ttt_length: int = Field(default=5, ge=1, le=8, description="Steps of training-time test (look-ahead).")
    ttt_decay: DecimalString = Field(default="0.8", description="Weight of step k is this to the power of k.")
    discard: Discard = Field(default_factory=Discard, description="Learning from rejected tokens.")
    reward_weighting: RewardWeighting = Field(
        default_factory=RewardWeighting, description="Weighting of samples by reward."
    )


class Optimizer(ApiModel):
    """AdamW."""

    rules = (
        Rule(
            "double(self.learningRate) > 0.0 && (!has(self.finalLearningRate) || double(self.finalLearningRate) > 0.0)",
            "learning rates must be above 0",
            lambda o: (
                float(o.learning_rate) > 0 and (o.final_learning_rate is None or float(o.final_learning_rate) > 0)
            ),
        ),
        Rule(
            "has(self.finalLearningRate) == has(self.decaySteps)",
            "finalLearningRate and decaySteps belong together",
            lambda o: (o.final_learning_rate is None) == (o.decay_steps is None),
        ),
    )
    learning_rate: DecimalString = Field(
        default="0.0001", description="Rate after warm-up; 0.0001 from scratch, 0.00001 for fine-tuning."
    )
    final_learning_rate: DecimalString | None = Field(
        default=None, description="Cosine to this rate over decaySteps. If absent: constant."
    )
    decay_steps: int | None = Field(default=None, ge=1, description="Steps of the cosine.")
    warmup_steps: int = Field(default=400, ge=0, description="Steps of the linear warm-up.")
    weight_decay: DecimalString = Field(default="0", description="Weight decay.")
    beta1: DecimalString = Field(default="0.9", description="Decay of the first moment.")
    beta2: DecimalString = Field(default="0.95", description="Decay of the second moment.")
    gradient_clip: DecimalString = Field(default="0.5", description="Largest norm of the gradient.")


class Batch(ApiModel):
    """What one optimiser step sees."""

    size: int = Field(default=8, ge=1, le=4096, description="Samples per step.")
    max_fresh: int | None = Field(
        default=None, ge=1, description="At most this many unseen samples per step; the rest is replay."
    )
    max_sequence_length: int = Field(default=2048, ge=16, le=1 << 20, description="Longer samples are cut, in tokens.")


class Schedule(ApiModel):
    """When the trainer takes steps."""

    warmup_requests: int = Field(default=16, ge=1, description="Requests to wait for before the first step.")
    steps_per_request: DecimalString | None = Field(
        default=None, description="At most this many steps per request received. If absent: train without pause."
    )
    update_every_requests: Annotated[int | None, Later()] = Field(
        default=None, ge=1, description="Train in rounds, one after so many requests. If absent: continuously."
    )
    checkpoint_interval: Duration = Field(default="1m", description="Time between resume checkpoints.")


class Capture(ApiModel):
    """What the engine records of each request."""

    share: DecimalString = Field(default="1", description="Share of requests that are learnt from, 0 to 1.")
    teacher_top_k: int = Field(
        default=64, ge=1, le=1024, description="Target logits kept per token; the tail's mass is kept as one number."
    )
    rejected: bool = Field(default=False, description="Record rejected branches too.")

    rules = (Rule("double(self.share) <= 1.0", "share must be between 0 and 1", lambda c: float(c.share) <= 1),)


class Buffer(ApiModel):
    """The trainer's replay buffer, in memory."""

    rules = (
        Rule(
            "double(self.domainQuota) > 0.0 && double(self.domainQuota) <= 1.0",
            "domainQuota must be above 0 and at most 1",
            lambda b: 0 < float(b.domain_quota) <= 1,
        ),
    )
    size: Quantity = Field(default="2Gi", description="Bound in bytes; full means the oldest goes, counted.")
    domain_quota: DecimalString = Field(
        default="0.5", description="Largest share of the buffer for one domain while others want room."
    )
    max_draft_versions_behind: int | None = Field(
        default=None, ge=0, description="Samples from drafters older than this are dropped. If absent: no bound."
    )
    max_target_versions_behind: Annotated[int | None, Later()] = Field(
        default=None,
        ge=0,
        description="Samples of older targets than this are dropped. If absent: only the current one's.",
    )
    max_age: Duration | None = Field(default=None, description="Older samples are dropped. If absent: no bound.")


class Offline(ApiModel):
    """A corpus mixed with live traffic."""

    rules = (Rule("double(self.share) <= 1.0", "share must be between 0 and 1", lambda o: float(o.share) <= 1),)
    source: Annotated[str, Later()] = Field(
        pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$",
        max_length=1024,
        description="Archived traces, s3://BUCKET/PREFIX.",
    )
    share: Annotated[DecimalString, Later()] = Field(default="0.2", description="Share of each batch from the corpus.")


class TrainingPolicySpec(ApiModel):
    """How the drafter learns; every field has a default that works."""

    loss: Loss = Field(default_factory=Loss, description="What is minimised.")
    optimizer: Optimizer = Field(default_factory=Optimizer, description="How it is minimised.")
    batch: Batch = Field(default_factory=Batch, description="What one optimiser step sees.")
    schedule: Schedule = Field(default_factory=Schedule, description="When the trainer takes steps.")
    precision: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="Compute precision; master weights are float32 in any case."
    )
    capture: Capture = Field(default_factory=Capture, description="What the engine records of each request.")
    buffer: Buffer = Field(default_factory=Buffer, description="The replay buffer.")
    offline: Annotated[Offline | None, Later()] = Field(default=None, description="A corpus mixed with live traffic.")
    seed: int = Field(default=0, ge=0, description="Seed of sampling from the buffer.")


class TrainingPolicy(Resource):
    """How drafters learn: loss, optimiser, batches, buffer. Speculators name it in trainingPolicyRef."""

    kind: str = "TrainingPolicy"
    spec: TrainingPolicySpec = Field(default_factory=TrainingPolicySpec)
