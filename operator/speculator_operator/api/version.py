"""SpeculatorVersion: a published drafter as people see it. The ledger is in S3; this is its window."""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from speculator_runtime.contracts.ledger import Manifest, Verdict, VerdictRecord

from .base import ApiModel, DecimalString, Resource, Rule, Sha256, StatusModel, decimal_string
from .status import Condition, Speedup

Number = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$|^(NaN|-?Infinity)$", max_length=64)]


class VersionPhase(StrEnum):
    """Where a version is in its life."""

    PUBLISHED = "Published"
    VALIDATING = "Validating"
    CANARY = "Canary"
    PROMOTED = "Promoted"
    SUPERSEDED = "Superseded"
    REJECTED = "Rejected"
    ABORTED = "Aborted"
    EXPIRED = "Expired"


class ParentVersion(ApiModel):
    """The version this one was trained on from."""

    version: int = Field(ge=0, description="Its number.")
    sha256: Sha256 = Field(description="sha256 of its model.safetensors.")
    manifest_sha256: Sha256 = Field(default="", description="sha256 of its manifest: versions form a chain.")


class VersionTarget(ApiModel):
    """The target a drafter belongs to."""

    model: str = Field(max_length=1024, description="Where it came from.")
    revision: str = Field(default="", max_length=128, description="Its revision.")
    digest: str = Field(max_length=128, description="Digest of its files.")
    hidden_size: int = Field(ge=1, description="Width of its hidden states.")
    vocab_size: int = Field(ge=1, description="Size of its vocabulary.")


class VersionData(ApiModel):
    """The requests a version learnt from since its parent."""

    requests: int = Field(default=0, ge=0, description="Requests since the parent.")
    requests_total: int = Field(default=0, ge=0, description="Requests since the lineage began.")
    tokens: int = Field(default=0, ge=0, description="Tokens since the parent.")
    domains: dict[str, int] = Field(default_factory=dict, description="Requests by domain.")
    draft_versions: dict[str, int] = Field(default_factory=dict, description="Requests by the version that served.")
    target_digests: dict[str, int] = Field(default_factory=dict, description="Requests by the target that answered.")
    first_request: str = Field(default="", max_length=256, description="Id of the first request.")
    last_request: str = Field(default="", max_length=256, description="Id of the last request.")


class SpeculatorVersionSpec(ApiModel):
    """Provenance of a version, copied from its manifest. Immutable."""

    rules = (Rule("self == oldSelf", "a version's provenance does not change"),)
    speculator: str = Field(max_length=253, description="Name of the Speculator.")
    version: int = Field(ge=1, description="Version number.")
    sha256: Sha256 = Field(description="sha256 of model.safetensors.")
    size_bytes: int = Field(ge=0, description="Size of model.safetensors.")
    location: str = Field(max_length=2048, description="Folder of the version, s3://BUCKET/PREFIX.")
    manifest_sha256: Sha256 = Field(default="", description="sha256 of the manifest.")
    parent: ParentVersion | None = Field(default=None, description="The version it was trained on from.")
    algorithm: str = Field(max_length=64, description="Drafter family.")
    target: VersionTarget = Field(description="The target it belongs to.")
    capture_layers: list[int] = Field(max_length=16, description="Decoder layers whose input is captured.")
    draft_vocab_size: int = Field(ge=1, description="Slots of the draft vocabulary.")
    vocabulary: str = Field(max_length=64, description="Kind of draft vocabulary.")
    vocabulary_used: int = Field(ge=0, description="Used slots of the draft vocabulary.")
    engine: str = Field(default="", max_length=128, description="Engine the traces came from.")
    code_version: str = Field(max_length=128, description="Version of the trainer's code.")
    training_policy_sha256: Sha256 = Field(default="", description="sha256 of the TrainingPolicy's spec.")
    data: VersionData = Field(default_factory=VersionData, description="The requests it learnt from.")
    training_step: int = Field(ge=0, description="Optimiser step.")
    metrics: dict[str, Number] = Field(default_factory=dict, description="Training metrics, for example loss.")
    created: datetime = Field(description="When it was published.")


class SpeculatorVersionStatus(StatusModel):
    """Where the version is, and the latest verdict."""

    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that this status is about.")
    phase: VersionPhase = Field(default=VersionPhase.PUBLISHED, description="Where the version is in its life.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="Conditions.",
    )
    verdict: Verdict | None = Field(default=None, description="How the latest decision ended.")
    reason: str = Field(default="", max_length=256, description="Why, in CamelCase.")
    message: str = Field(default="", max_length=4096, description="Why, for people.")
    decided_by: str = Field(default="", max_length=256, description="gate, or the id of a person's action.")
    decided_at: datetime | None = Field(default=None, description="When.")
    verdicts: int = Field(default=0, ge=0, description="Decisions so far; all are in the ledger.")
    against_target_only: Speedup | None = Field(default=None, description="Speedup over target-only decoding.")
    against_stable: Speedup | None = Field(default=None, description="Speedup over the stable version of the time.")
    accept_length: DecimalString | None = Field(
        default=None, description="Tokens per verify step in the canary, bonus token included."
    )
    blocks: int = Field(default=0, ge=0, description="Blocks of evidence used.")
    evidence_sha256: Sha256 = Field(default="", description="sha256 over the blocks used.")
    alpha: DecimalString | None = Field(default=None, description="Probability of error that was allowed.")


class SpeculatorVersion(Resource):
    """One published drafter: where it comes from, and how it fared."""

    kind: str = "SpeculatorVersion"
    spec: SpeculatorVersionSpec
    status: SpeculatorVersionStatus = Field(default_factory=SpeculatorVersionStatus)


def version_name(speculator: str, version: int) -> str:
    """Name of the SpeculatorVersion; lists sort by version."""
    return f"{speculator}-{version:06d}"


def version_spec(manifest: Manifest, speculator: str, location: str, manifest_sha256: str) -> SpeculatorVersionSpec:
    """The window's provenance from the ledger's manifest."""
    data = manifest.data.model_dump()
    data["draft_versions"] = {str(version): count for version, count in manifest.data.draft_versions.items()}
    parent = manifest.parent and ParentVersion(
        version=manifest.parent.version,
        sha256=manifest.parent.sha256,
        manifest_sha256=manifest.parent_manifest_sha256,
    )
    return SpeculatorVersionSpec(
        speculator=speculator,
        version=manifest.version,
        sha256=manifest.sha256,
        size_bytes=manifest.files["model.safetensors"].size,
        location=location,
        manifest_sha256=manifest_sha256,
        parent=parent,
        algorithm=manifest.algorithm,
        target=VersionTarget(**manifest.target.model_dump()),
        capture_layers=list(manifest.capture_layers),
        draft_vocab_size=manifest.draft_vocab_size,
        vocabulary=manifest.vocabulary,
        vocabulary_used=manifest.vocabulary_used,
        engine=manifest.engine,
        code_version=manifest.code_version,
        training_policy_sha256=manifest.training_policy_sha256,
        data=VersionData(**data),
        training_step=manifest.training_step,
        metrics={name: str(Decimal(repr(value))) for name, value in sorted(manifest.metrics.items())},
        created=manifest.created,
    )


def verdict_fields(record: VerdictRecord) -> dict[str, object]:
    """The fields of SpeculatorVersionStatus that show a verdict; phase and conditions are the rollout's to say."""
    return {
        "verdict": record.verdict,
        "reason": record.reason,
        "message": record.message,
        "decided_by": record.decided_by,
        "decided_at": record.at,
        "verdicts": record.sequence,
        "against_target_only": record.against_target_only and Speedup.of(record.against_target_only),
        "against_stable": record.against_stable and Speedup.of(record.against_stable),
        "accept_length": None if record.accept_length is None else decimal_string(record.accept_length),
        "blocks": record.blocks,
        "evidence_sha256": record.evidence_sha256,
        "alpha": None if record.alpha is None else decimal_string(record.alpha, 8),
    }
