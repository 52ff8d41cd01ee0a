"""Small valid contract objects, so that a test states only what it is about."""

from datetime import UTC, datetime
from pathlib import Path

from speculator_runtime.contracts.ledger import DataWindow, FileEntry, Manifest, TargetIdentity
from speculator_runtime.contracts.plan import Arm, Block, VersionRef
from speculator_runtime.storage import StoredManifest, describe_files


def write_version(directory: Path, content: bytes = b"weights") -> dict[str, FileEntry]:
    """The files of a version with made-up weights; returns the manifest's entries."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(content)
    (directory / "config.json").write_text("{}")
    return describe_files(directory)


def make_manifest(version: int, files: dict[str, FileEntry], parent: StoredManifest | None = None) -> Manifest:
    return Manifest(
        version=version,
        parent=parent.ref if parent else None,
        parent_manifest_sha256=parent.sha256 if parent else "",
        files=files,
        target=TargetIdentity(model="tiny", digest="t" * 64, hidden_size=8, vocab_size=32),
        capture_layers=(2, 3, 4),
        draft_vocab_size=32,
        vocabulary="full",
        vocabulary_used=32,
        code_version="test",
        training_policy_sha256="p" * 64,
        data=DataWindow(),
        training_step=version * 10,
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )


def make_block(index: int, *, generation: int = 1, pod_uid: str = "uid-a", seconds: float = 5.0) -> Block:
    return Block(
        pod="engine-0",
        pod_uid=pod_uid,
        generation=generation,
        index=index,
        round=index // 2,
        arm=Arm.CANDIDATE if index % 2 else Arm.TARGET_ONLY,
        version=VersionRef(version=1, sha256="a" * 64) if index % 2 else None,
        started=1000.0 + index,
        seconds=seconds,
    )
