"""Where versions and their history are kept: spec.storage of a Speculator."""

from pydantic import Field

from .base import ApiModel, Name, Rule


class S3Credentials(ApiModel):
    """A Secret with S3 credentials."""

    name: Name = Field(description="Name of the Secret, in the same namespace.")
    access_key_id: str = Field(
        default="accessKeyId", min_length=1, max_length=253, description="Key in the Secret that holds the id."
    )
    secret_access_key: str = Field(
        default="secretAccessKey", min_length=1, max_length=253, description="Key in the Secret that holds the secret."
    )


class S3(ApiModel):
    """The bucket with the ledger: versions, evidence, verdicts."""

    rules = (
        Rule(
            "self.bucket == oldSelf.bucket && self.prefix == oldSelf.prefix",
            "bucket and prefix are fixed: the version history lives there; create another Speculator to move it",
        ),
    )
    bucket: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", min_length=3, max_length=63, description="Name of the bucket."
    )
    prefix: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*)?$",
        max_length=512,
        description="Folder in the bucket, without slashes at its ends. Empty is NAMESPACE/NAME.",
    )
    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s]+/?$",
        max_length=512,
        description="URL of an S3-compatible server, reachable from the pods. If absent: AWS.",
    )
    region: str = Field(default="us-east-1", min_length=1, max_length=64, description="Region of the bucket.")
    path_style: bool = Field(
        default=False, description="Address buckets by path instead of host name; most servers other than AWS want it."
    )
    credentials_secret_ref: S3Credentials | None = Field(
        default=None,
        description="Secret with credentials. If absent: the pods' own identity (see identityAnnotations).",
    )
    identity_annotations: dict[str, str] = Field(
        default_factory=dict,
        description="Annotations of the pods' ServiceAccounts, for example eks.amazonaws.com/role-arn.",
    )


class Storage(ApiModel):
    """Where versions and their history are kept."""

    s3: S3 = Field(description="An S3 bucket.")
