"""SpeculatorVersions: the window on the ledger, bounded by the history limit. Versions in use are always shown."""

from collections.abc import Mapping
from typing import Any

from speculator_operator.api.base import API_VERSION
from speculator_operator.api.speculator import Speculator
from speculator_operator.api.version import SpeculatorVersionStatus, VersionPhase, verdict_fields, version_name
from speculator_operator.api.version import version_spec as provenance
from speculator_operator.reconcile.observed import VersionEntry
from speculator_operator.rollout import PhaseReport
from speculator_runtime.contracts.ledger import version_prefix


def shown_versions(entries: tuple[VersionEntry, ...], in_use: set[int], limit: int) -> tuple[VersionEntry, ...]:
    """The newest `limit` versions beside those in use."""
    others = [entry for entry in entries if entry.manifest.version not in in_use]
    newest = {entry.manifest.version for entry in sorted(others, key=lambda entry: entry.manifest.version)[-limit:]}
    return tuple(entry for entry in entries if entry.manifest.version in newest | in_use)


def version_objects(
    speculator: Speculator,
    entries: tuple[VersionEntry, ...],
    reports: Mapping[int, PhaseReport],
    labels: Mapping[str, str],
) -> tuple[tuple[dict[str, Any], ...], dict[int, str]]:
    """The SpeculatorVersions, and by number why a version cannot be shown: anybody may have written its manifest."""
    objects, hidden = [], {}
    for entry in entries:
        number = entry.manifest.version
        try:
            objects.append(version_object(speculator, entry, reports[number], labels))
        except ValueError as error:
            hidden[number] = " ".join(str(error).split())[:600]
    return tuple(objects), hidden


def version_object(
    speculator: Speculator, entry: VersionEntry, report: PhaseReport, labels: Mapping[str, str]
) -> dict[str, Any]:
    """The SpeculatorVersion with its status."""
    meta, manifest = speculator.metadata, entry.manifest
    s3 = speculator.spec.storage.s3
    prefix = s3.prefix or f"{meta.namespace}/{meta.name}"
    location = f"s3://{s3.bucket}/{prefix}/{version_prefix(manifest.version)}"
    status = SpeculatorVersionStatus(
        **{
            "observed_generation": 1,  # The spec is immutable.
            "phase": VersionPhase(report.phase),
            **(verdict_fields(report.record) if report.record else {}),
            "reason": report.reason[:256],
            "message": report.message[:4096],
        }
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "SpeculatorVersion",
        "metadata": {
            "name": version_name(meta.name, manifest.version),
            "namespace": meta.namespace,
            "labels": dict(labels),
            "ownerReferences": [speculator.owner_reference],
        },
        "spec": provenance(manifest, meta.name, location, entry.manifest_sha256).wire(),
        "status": status.wire(),
    }
