"""The Speculator: one target model, served with a drafter that learns from its traffic."""

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from speculator_runtime.contracts.control import DraftShape

from .base import API_VERSION, ApiModel, Duration, Later, Name, Quantity, Resource, Rule
from .pods import EnvVars, PodTemplate, Resources
from .status import SpeculatorStatus
from .storage import Storage

NAME_LIMIT = 45
"""A StatefulSet's name plus a revision hash (11 characters) must fit a label (63), and ours is NAME-engine."""

NAME_PATTERN = r"[a-z]([-a-z0-9]*[a-z0-9])?"
"""A Service is named after it, and those begin with a letter and have no dots."""


class SecretKeyRef(ApiModel):
    """A key of a Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, description="Key in the Secret.")


class PolicyRef(ApiModel):
    """A policy in the same namespace."""

    name: Name = Field(description="Name of the policy.")


class Target(ApiModel):
    """The model that is served, and whose answers the drafter learns to predict."""

    rules = (
        Rule(
            "self.updates == 'Moving' || (self.model == oldSelf.model && self.revision == oldSelf.revision)",
            "model and revision are fixed; set updates: Moving to change the target of a running Speculator",
        ),
        Rule(
            "!self.model.startsWith('file://')",
            "file:// is for tests of the operator only; use hf://, s3://, pvc:// or oci://",
        ),
    )
    model: str = Field(
        pattern=r"^(hf://[^/]+/[^/]+|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+|pvc://[^/]+(/.*)?|oci://.+|file:///.+)$",
        max_length=1024,
        description="Where the checkpoint is: hf://ORG/NAME, s3://BUCKET/PREFIX, pvc://CLAIM/PATH (a volume claim), or "
        "oci://IMAGE (an image volume).",
    )
    revision: str = Field(
        default="", max_length=128, description="Revision of an hf:// model: a branch, tag or commit. Empty is main."
    )
    served_name: str | None = Field(
        default=None,
        max_length=256,
        description="Model name in the OpenAI API. By default the last part of `model`.",
    )
    updates: Annotated[Literal["Fixed", "Moving"], Later()] = Field(
        default="Fixed",
        description="Fixed: the target never changes. Moving: it may be replaced, as in reinforcement learning.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Access token for private hf:// models; reaches the pods as HF_TOKEN."
    )

    @property
    def name(self) -> str:
        """Name under which the target is served."""
        return self.served_name or self.model.rstrip("/").rsplit("/", 1)[-1]


class Drafter(ApiModel):
    """The drafter's algorithm, start, shape, and the draft tree of a verify step."""

    rules = (
        Rule(
            "self.algorithm == oldSelf.algorithm && self.draftVocabSize == oldSelf.draftVocabSize"
            " && self.seed == oldSelf.seed",
            "algorithm, draftVocabSize and seed are fixed for a lineage of versions; create another Speculator",
        ),
        Rule(
            "!has(self.draftTokens) || self.topk > 1 || self.draftTokens == self.steps + 1",
            "with topk 1 the draft is a chain: draftTokens is steps + 1; leave it out",
            lambda d: d.draft_tokens is None or d.topk > 1 or d.draft_tokens == d.steps + 1,
        ),
    )
    algorithm: Literal["EAGLE3"] = Field(default="EAGLE3", description="Drafter family.")
    init_from: str | None = Field(
        default=None,
        pattern=r"^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+|hf://[^/]+/[^/]+)$",
        max_length=1024,
        description="Checkpoint to start from (s3:// or hf://, in SGLang's EAGLE-3 layout). If absent: random weights.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of random weights.")
    draft_vocab_size: int = Field(
        default=32000,
        ge=16,
        le=1 << 20,
        description="Tokens the drafter can propose; at or above the target's vocabulary it is all of it.",
    )
    intermediate_size: int | None = Field(default=None, ge=16, description="MLP width. By default the target's.")
    num_attention_heads: int | None = Field(default=None, ge=1, description="By default the target's.")
    num_key_value_heads: int | None = Field(default=None, ge=1, description="By default the target's.")
    steps: int = Field(default=3, ge=1, le=16, description="Draft forward passes per verify step (depth of the tree).")
    topk: int = Field(default=1, ge=1, le=16, description="Branches kept at each depth; 1 is a chain.")
    draft_tokens: int | None = Field(
        default=None,
        ge=2,
        le=64,
        description="Nodes verified per step, the root included. By default steps + 1 for a chain, else as many as "
        "the tree has, at most 64.",
    )

    def shape(self) -> DraftShape:
        """The draft tree in the contract's terms; a tree of depth d has 1 + k + (d - 1) k^2 nodes to choose from."""
        nodes = self.draft_tokens
        if nodes is None:
            tree = 1 + self.topk + (self.steps - 1) * self.topk**2
            nodes = self.steps + 1 if self.topk == 1 else min(64, tree)
        return DraftShape(steps=self.steps, topk=self.topk, draft_tokens=nodes)


class ReferenceEngine(ApiModel):
    """Options of the reference engine."""

    dtype: Literal["float64", "float32", "bfloat16"] = Field(
        default="bfloat16", description="Precision of the target. float32 is lossless token for token."
    )
    max_running_requests: int = Field(default=8, ge=1, le=4096, description="Requests decoded together.")
    max_total_tokens: int = Field(default=16384, ge=64, description="Bound of the KV cache in tokens, all requests.")
    max_context: int = Field(default=2048, ge=16, description="Longest prompt plus answer, in tokens.")
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads. By default the CPU limit.")


class Engine(ApiModel):
    """The program that serves."""

    rules = (
        Rule(
            "self.type == 'reference' || !has(self.reference)",
            "reference has options of the reference engine: remove it, or set type: reference",
            lambda e: e.type == "reference" or e.reference is None,
        ),
    )
    type: Literal["reference", "sglang"] = Field(
        default="reference",
        description="reference: our small PyTorch engine (CPUs, tests, a first run). sglang: SGLang with our plugin.",
    )
    image: str | None = Field(
        default=None, max_length=1024, description="Image of the engine. By default the operator's runtime image."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When images of the pods are pulled."
    )
    args: list[Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=list, max_length=256, description="Arguments added to the engine's command line."
    )
    env: EnvVars = Field(default_factory=list, description="Environment of the engine's container.")
    reference: ReferenceEngine | None = Field(default=None, description="Options of the reference engine.")


class Service(ApiModel):
    """The Service in front of the replicas."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="How the Service is reached."
    )
    port: int = Field(default=8000, ge=1, le=65535, description="Port of the OpenAI API and /generate.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of the Service.")


class Agent(ApiModel):
    """The sidecar beside the engine."""

    resources: Resources = Field(
        default_factory=Resources,
        description="Requests and limits of the agent. By default 100m CPU and 256Mi requested, 1Gi limit.",
    )
    trace_queue_size: Quantity = Field(
        default="256Mi", description="Traces waiting for the trainer; beyond it the oldest is dropped and counted."
    )


class Serving(ApiModel):
    """The replicas that serve."""

    replicas: int = Field(
        default=1,
        ge=0,
        le=1024,
        json_schema_extra={"format": "int32"},
        description="Engine pods. A HorizontalPodAutoscaler may set it through the scale subresource.",
    )
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs that one replica spans.")
    resources: Resources = Field(default_factory=Resources, description="Requests and limits of the engine.")
    agent: Agent = Field(default_factory=Agent, description="The sidecar beside the engine.")
    service: Service = Field(default_factory=Service, description="The Service in front of the replicas.")
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Overrides of the engine pods.")
    startup_timeout: Duration = Field(
        default="30m", description="How long loading the target may take before the engine is restarted."
    )
    drain: Duration = Field(
        default="20s", description="How long a stopping engine may finish requests that are under way."
    )
    max_unavailable: int = Field(
        default=1, ge=1, le=1024, description="Engine pods that a voluntary disruption or an update may take at once."
    )


class TrainerStorage(ApiModel):
    """A volume claim for resume checkpoints and the buffer."""

    size: Quantity = Field(default="20Gi", description="Size of the volume.")
    storage_class_name: str | None = Field(default=None, max_length=253, description="By default the cluster's.")


class Trainer(ApiModel):
    """The pod that trains the drafter."""

    image: str | None = Field(
        default=None, max_length=1024, description="Image of the trainer. By default the operator's runtime image."
    )
    resources: Resources = Field(default_factory=Resources, description="Requests and limits of the trainer.")
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads. By default the CPU limit.")
    storage: TrainerStorage | None = Field(
        default=None,
        description="A volume claim for the trainer's work. If absent: an emptyDir, and a restart resumes from S3.",
    )
    env: EnvVars = Field(default_factory=list, description="Environment of the trainer's container.")
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Overrides of the trainer pod.")


class ActionType(StrEnum):
    """What a person may ask of a rollout."""

    PROMOTE = "Promote"
    ABORT = "Abort"
    RETRY = "Retry"
    ROLLBACK = "Rollback"


class Action(ApiModel):
    """A command, carried out once and echoed in status.lastAction."""

    rules = (
        Rule(
            "self.type != 'Rollback' || has(self.version)",
            "Rollback needs the version to go back to",
            lambda a: a.type != ActionType.ROLLBACK or a.version is not None,
        ),
        Rule(
            "self.id != oldSelf.id || self == oldSelf",
            "an action that was given cannot be changed; give a new id for a new action",
        ),
    )
    id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$",
        max_length=64,
        description="Any text that was not used before. The action runs once for each id.",
    )
    type: ActionType = Field(
        description="Promote (skip what is left of the canary), Abort (end it, keep stable), Retry (try a rejected "
        "version again), Rollback (make an older version stable)."
    )
    version: int | None = Field(
        default=None, ge=1, description="Version the action is about. By default the candidate; Rollback must name it."
    )


class Rollout(ApiModel):
    """Commands to the rollout."""

    action: Action | None = Field(default=None, description="The latest command.")


class Adaptive(ApiModel):
    """Adaptation of drafting to the load."""

    rules = (
        Rule("self.minSteps <= self.maxSteps", "minSteps is above maxSteps", lambda a: a.min_steps <= a.max_steps),
    )
    enabled: Annotated[bool, Later()] = Field(
        default=False, description="Choose the draft shape per batch bucket from measured costs."
    )
    profile: Annotated[str | None, Later()] = Field(
        default=None,
        pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$",
        max_length=1024,
        description="Cost profile to use. If absent: measure one.",
    )
    buckets: list[Annotated[int, Field(ge=1, le=4096)]] = Field(
        default=[1, 2, 4, 8, 16, 32, 64],
        min_length=1,
        max_length=32,
        description="Batch buckets by which steps are measured: the largest number of sequences each holds.",
    )
    min_steps: Annotated[int, Later()] = Field(default=0, ge=0, le=16, description="Fewest draft steps; 0 is off.")
    max_steps: Annotated[int, Later()] = Field(default=5, ge=0, le=16, description="Most draft steps.")
    target_only_above: int | None = Field(
        default=None, ge=1, description="Batches with more sequences than this decode target-only."
    )


class Privacy(ApiModel):
    """What may be learnt from requests."""

    opt_out_by_default: bool = Field(
        default=False, description="Train only on requests that ask for it, instead of on all that do not refuse."
    )
    retention: Annotated[Duration | None, Later()] = Field(
        default=None, description="Traces older than this are deleted. If absent: bounded by the buffer's size alone."
    )


class Mode(StrEnum):
    """Who decides which drafter is used."""

    AUTO = "Auto"
    TARGET_ONLY = "TargetOnly"
    PINNED = "Pinned"


class SpeculatorSpec(ApiModel):
    """What is served, learnt and where it is kept. `target.model` and `storage.s3.bucket` are all that is required."""

    rules = (
        Rule(
            "(self.mode == 'Pinned') == has(self.pinnedVersion)",
            "pinnedVersion is given exactly when mode is Pinned",
            lambda s: (s.mode == Mode.PINNED) == (s.pinned_version is not None),
        ),
        Rule(
            "self.engine.type != 'reference' || self.serving.tensorParallelSize == 1",
            "the reference engine runs on one device: tensorParallelSize must be 1",
            lambda s: s.engine.type != "reference" or s.serving.tensor_parallel_size == 1,
        ),
    )
    target: Target = Field(description="The model that is served.")
    storage: Storage = Field(description="Where versions and their history are kept.")
    drafter: Drafter = Field(default_factory=Drafter, description="The drafter and the draft tree.")
    engine: Engine = Field(default_factory=Engine, description="The program that serves.")
    serving: Serving = Field(default_factory=Serving, description="The replicas that serve.")
    trainer: Trainer = Field(default_factory=Trainer, description="The pod that trains.")
    training_policy_ref: PolicyRef | None = Field(
        default=None, description="TrainingPolicy to use. If absent: every default."
    )
    sync_policy_ref: PolicyRef | None = Field(default=None, description="SyncPolicy to use. If absent: every default.")
    mode: Mode = Field(
        default=Mode.AUTO,
        description="Auto: versions are gated and promoted. TargetOnly: speculation is off. Pinned: pinnedVersion "
        "serves and nothing replaces it.",
    )
    pinned_version: int | None = Field(default=None, ge=1, description="Version that serves in mode Pinned.")
    paused: bool = Field(
        default=False,
        description="Stops training, publishing and rollouts where they are. Serving goes on as it is.",
    )
    rollout: Rollout = Field(default_factory=Rollout, description="Commands to the rollout.")
    adaptive: Adaptive = Field(default_factory=Adaptive, description="Adaptation of drafting to the load.")
    privacy: Privacy = Field(default_factory=Privacy, description="What may be learnt from requests.")
    revision_history_limit: int = Field(
        default=20,
        ge=1,
        le=1000,
        description="SpeculatorVersions kept beside those in use. The history in S3 is not touched.",
    )


def name_problem(name: str) -> str | None:
    """Why `name` cannot name a Speculator, or None. The CRD has the same rule."""
    if len(name) > NAME_LIMIT:
        return f"the name has {len(name)} characters; at most {NAME_LIMIT} fit, because pods are named after it"
    if not re.fullmatch(NAME_PATTERN, name):
        return "the name must begin with a letter and have no dots, because a Service is named after it"
    return None


class Speculator(Resource):
    """Serves a target model with a drafter that learns from live traffic, each version gated on measured speedup."""

    kind: str = "Speculator"
    spec: SpeculatorSpec
    status: SpeculatorStatus = Field(default_factory=SpeculatorStatus)

    @property
    def owner_reference(self) -> dict[str, object]:
        """For objects that must go when this Speculator goes."""
        return {
            "apiVersion": API_VERSION,
            "kind": "Speculator",
            "name": self.metadata.name,
            "uid": self.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
