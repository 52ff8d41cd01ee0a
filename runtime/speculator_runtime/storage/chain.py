"""The chain of manifests: each names its parent by number, weights and the sha256 of the parent's manifest. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from speculator_runtime.contracts.ledger import Manifest
from speculator_runtime.contracts.plan import VersionRef


@dataclass(frozen=True)
class StoredManifest:
    """A manifest as it lies in the store: parsed, and the sha256 of its bytes (`Manifest.parent_manifest_sha256`)."""

    manifest: Manifest
    sha256: str

    @property
    def ref(self) -> VersionRef:
        """The version by number and weights."""
        return VersionRef(version=self.manifest.version, sha256=self.manifest.sha256)


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of `manifest.json`: indented for people, sorted, so that equal manifests have equal digests."""
    return (json.dumps(manifest.model_dump(mode="json"), sort_keys=True, indent=2) + "\n").encode()


def manifest_sha256(data: bytes) -> str:
    """Digest of a manifest's bytes."""
    return hashlib.sha256(data).hexdigest()


def check_chain(stored: Mapping[int, StoredManifest]) -> list[str]:
    """Every break in the chain as a sentence, ascending by version; empty when it is whole."""
    problems = []
    for number in sorted(stored):
        manifest = stored[number].manifest
        if manifest.version != number:
            problems.append(f"version {number}: its manifest says it is version {manifest.version}")
        parent = manifest.parent
        if parent is None:
            if manifest.parent_manifest_sha256:
                problems.append(f"version {number}: it has a parent's digest but names no parent")
            continue
        if parent.version >= number:
            problems.append(f"version {number}: its parent {parent.version} is not older than itself")
            continue
        if parent.version == 0:  # The random day-0 drafter is never published.
            continue
        if parent.version not in stored:
            problems.append(f"version {number}: its parent {parent.version} is not in the ledger")
            continue
        known = stored[parent.version]
        if known.sha256 != manifest.parent_manifest_sha256:
            problems.append(
                f"version {number}: it was built on a manifest of version {parent.version} with sha256 "
                f"{manifest.parent_manifest_sha256 or '(none)'}, the ledger has {known.sha256}"
            )
        if known.manifest.sha256 != parent.sha256:
            problems.append(
                f"version {number}: it was built on weights {parent.sha256} of version {parent.version}, the ledger "
                f"has {known.manifest.sha256}"
            )
    return problems
