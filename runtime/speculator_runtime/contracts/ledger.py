"""The ledger in S3: manifests, evidence and verdicts. It outlives pods, resources and the operator.

Under the bucket's prefix (`StoreSettings.prefix`, by default `<namespace>/<name>`):

    versions/000042/claim.json                      written first, `If-None-Match: *`: a number is claimed once
    versions/000042/{model.safetensors,config.json} the drafter in SGLang's checkpoint format
    versions/000042/manifest.json                   written last: without it the version does not exist
    versions/000042/evidence/GEN-POD_UID-FIRST.jsonl    blocks, one JSON object a line, parts are never rewritten
    versions/000042/verdicts/NNN.json               decisions, in order
    checkpoints/...                                 the trainer's own resume state

A version's predecessor is named by number and by the sha256 of its manifest.json: the versions form a chain.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from .base import Contract, VersionedContract
from .plan import VersionRef


def version_prefix(version: int) -> str:
    """The folder of a version below the store's prefix, for example `versions/000042`."""
    return f"versions/{version:06d}"


class FileEntry(Contract):
    """A file of the version."""

    sha256: str
    size: int = Field(ge=0, description="Bytes.")


class DataWindow(Contract):
    """The requests a version learnt from since its parent, and what had produced them."""

    requests: int = 0
    requests_total: int = Field(default=0, description="Since the lineage began.")
    tokens: int = 0
    domains: dict[str, int] = Field(default_factory=dict)
    draft_versions: dict[int, int] = Field(default_factory=dict, description="Draft version that served -> requests.")
    target_digests: dict[str, int] = Field(default_factory=dict)
    first_request: str = ""
    last_request: str = ""


class TargetIdentity(Contract):
    """The target a drafter belongs to."""

    model: str
    revision: str = ""
    digest: str = Field(description="As in EngineState.target_digest.")
    hidden_size: int
    vocab_size: int


class Manifest(VersionedContract):
    """Immutable provenance of a version."""

    version: int = Field(ge=1)
    parent: VersionRef | None = None
    parent_manifest_sha256: str = ""
    files: dict[str, FileEntry]
    algorithm: str = "EAGLE3"
    target: TargetIdentity
    capture_layers: tuple[int, int, int] = Field(
        description="Indices of the decoder layers whose INPUT is captured, as in SGLang's Llama: (2, L // 2, L - 3)."
    )
    draft_vocab_size: int
    vocabulary: str = Field(description="`full`, or `fixed-size-growing`: free slots fill as tokens appear.")
    vocabulary_used: int = Field(description="Used slots of the draft vocabulary.")
    engine: str = ""
    code_version: str
    training_policy_sha256: str
    data: DataWindow
    training_step: int
    metrics: dict[str, float] = Field(default_factory=dict, description="For example loss, train_accept_length.")
    created: datetime

    @property
    def sha256(self) -> str:
        """Of model.safetensors."""
        return self.files["model.safetensors"].sha256


class Verdict(StrEnum):
    """How a decision ended."""

    PROMOTED = "Promoted"
    REJECTED = "Rejected"
    KEPT_STABLE = "KeptStable"
    ABORTED = "Aborted"
    FALLBACK = "Fallback"
    RECOVERED = "Recovered"


class Interval(Contract):
    """A speedup with its always-valid confidence bounds (ratios, 1.0 is no change)."""

    estimate: float
    lower: float
    upper: float
    pairs: int


class VerdictRecord(VersionedContract):
    """One decision, with everything that is needed to recompute it from the evidence."""

    sequence: int = Field(ge=1)
    version: VersionRef
    verdict: Verdict
    reason: str = Field(description="CamelCase.")
    message: str
    decided_by: str = Field(description="`gate`, or the id of the action that a person gave.")
    at: datetime
    against_target_only: Interval | None = None
    against_stable: Interval | None = None
    accept_length: float | None = None
    blocks: int = 0
    evidence_sha256: str = Field(default="", description="Over the blocks used, in (pod_uid, generation, index) order.")
    alpha: float | None = None
    parameters: dict[str, str | int | float | bool | None] = Field(
        default_factory=dict, description="Of the gate as it was pinned for this run."
    )
