"""Where each version is in its life, for the SpeculatorVersions."""

from collections.abc import Iterable, Mapping, Sequence

from speculator_runtime.contracts.ledger import Manifest, Verdict, VerdictRecord

from .records import ENDED
from .state import RunState, VersionPhase
from .types import PhaseReport, ref_of

ENDING = {Verdict.PROMOTED, *ENDED}


def version_phases(
    state: RunState, manifests: Sequence[Manifest], history: Iterable[VerdictRecord]
) -> Mapping[int, PhaseReport]:
    """By version number. history: all records of the ledger, this pass's included."""
    latest: dict[int, VerdictRecord] = {}
    for record in sorted(history, key=lambda record: record.sequence):
        latest[record.version.version] = record
    return {manifest.version: _phase(state, manifest, latest.get(manifest.version)) for manifest in manifests}


def _phase(state: RunState, manifest: Manifest, record: VerdictRecord | None) -> PhaseReport:
    ref = ref_of(manifest)
    run = state.candidate
    if run is not None and run.version == ref:
        return PhaseReport(run.phase.value, state.reason, state.message, record)
    if state.stable == ref:
        reason, message = (record.reason, record.message) if record else ("Stable", "serves")
        return PhaseReport(VersionPhase.PROMOTED.value, reason, message, record)
    if state.retry == ref:
        return PhaseReport(VersionPhase.PUBLISHED.value, "WaitsForRetry", "somebody asked to try it next", record)
    if record is not None and record.verdict in ENDED:
        return PhaseReport(ENDED[record.verdict].value, record.reason, record.message, record)
    if record is not None:
        return PhaseReport(VersionPhase.SUPERSEDED.value, "Superseded", "a later version is stable", record)
    for entry in state.rejected:
        if entry.sha256 == ref.sha256:
            message = f"the same weights as version {entry.version}; a Retry action tries them again"
            return PhaseReport(entry.phase.value, entry.reason, message)
    if state.stable is not None and state.stable.sha256 == ref.sha256:
        message = f"the same weights as version {state.stable.version}, which is stable"
        return PhaseReport(VersionPhase.SUPERSEDED.value, "SameWeights", message)
    if manifest.version > state.considered:
        return PhaseReport(VersionPhase.PUBLISHED.value, "Waiting", "waits for its turn")
    return PhaseReport(VersionPhase.SUPERSEDED.value, "PassedOver", "a later version was tried in its place")
