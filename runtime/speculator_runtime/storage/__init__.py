"""The S3 ledger: versions, evidence, verdicts, checkpoints; and bringing a target checkpoint into a pod.

Imports no torch: operator, agent and trainer share it.
"""

from .chain import StoredManifest, check_chain
from .checkpoints import CheckpointPointer, fetch_checkpoint, put_checkpoint, read_checkpoint
from .errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    ConditionalWriteUnsupportedError,
    CorruptObjectError,
    CredentialsError,
    ObjectNotFoundError,
    StoreConfigurationError,
    StoreError,
    StoreUnavailableError,
    StoreUnreachableError,
)
from .evidence import evidence_sha256
from .ledger import Ledger, describe_files

__all__ = [
    "AlreadyExistsError",
    "BucketNotFoundError",
    "CheckpointPointer",
    "ConditionalWriteUnsupportedError",
    "CorruptObjectError",
    "CredentialsError",
    "Ledger",
    "ObjectNotFoundError",
    "StoreConfigurationError",
    "StoreError",
    "StoreUnavailableError",
    "StoreUnreachableError",
    "StoredManifest",
    "check_chain",
    "describe_files",
    "evidence_sha256",
    "fetch_checkpoint",
    "put_checkpoint",
    "read_checkpoint",
]
