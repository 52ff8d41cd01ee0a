"""Verdicts as records: how they are written, taken up again after a restart, and recomputed."""

from collections.abc import Sequence
from datetime import datetime

from speculator_operator.gate import (
    GateReport,
    Move,
    decide,
    evaluate,
    evaluate_holdback,
    evidence_sha256,
    judge_holdback,
)
from speculator_operator.gate.policy import FallbackPolicy, GatePolicy
from speculator_operator.gate.types import Outcome
from speculator_runtime.contracts.ledger import Verdict, VerdictRecord
from speculator_runtime.contracts.plan import Arm, Block, VersionRef

from .evidence import latest, seen, through
from .state import REJECTED_KEPT, FallbackState, RejectedDigest, RunState, VersionPhase

Parameters = dict[str, str | int | float | bool | None]

ENDED = {
    Verdict.REJECTED: VersionPhase.REJECTED,
    Verdict.ABORTED: VersionPhase.ABORTED,
    Verdict.KEPT_STABLE: VersionPhase.EXPIRED,
}
"""Phase of a version whose latest verdict is this; a promoted one depends on what came after it."""


def make_record(
    state: RunState,
    version: VersionRef,
    verdict: Verdict,
    decision: tuple[str, str],
    now: datetime,
    *,
    decided_by: str = "gate",
    report: GateReport | None = None,
    blocks: Sequence[Block] = (),
    gate: GatePolicy | None = None,
    stable: VersionRef | None = None,
    fallback: FallbackPolicy | None = None,
    extra: Parameters | None = None,
) -> VerdictRecord:
    """The next record. With a report it holds all that is needed to recompute the decision from the blocks.

    stable: the drafter that a candidate was compared with.
    """
    parameters: Parameters = {"generation": state.generation, **(extra or {})}
    if report is not None and gate is not None:
        parameters |= {f"gate.{name}": value for name, value in gate.model_dump(mode="json").items()}
        parameters["through"] = through(blocks)
    if fallback is not None:
        parameters |= {f"fallback.{name}": value for name, value in fallback.model_dump(mode="json").items()}
    if stable is not None:
        parameters |= {"stable.version": stable.version, "stable.sha256": stable.sha256}
    return VerdictRecord(
        sequence=state.sequence + 1,
        version=version,
        verdict=verdict,
        reason=decision[0],
        message=decision[1],
        decided_by=decided_by,
        at=now,
        against_target_only=report.against_target_only.interval if report else None,
        against_stable=report.against_stable.interval if report and report.against_stable else None,
        accept_length=report.accept_length if report else None,
        blocks=report.blocks if report else 0,
        evidence_sha256=evidence_sha256(blocks) if report else "",
        alpha=report.alpha if report else None,
        parameters=parameters,
    )


def apply_record(state: RunState, record: VerdictRecord) -> RunState:
    """The state after a verdict. The same function takes up a verdict just made and one found in the ledger."""
    generation = record.parameters.get("generation")
    floor = max(state.generation, generation if isinstance(generation, int) else 0)
    ours = state.candidate is not None and state.candidate.version == record.version
    ends = record.verdict in ENDED or record.verdict is Verdict.PROMOTED
    update: dict[str, object] = {"sequence": record.sequence, "generation": floor}
    if ends:
        update |= {
            "considered": max(state.considered, record.version.version),
            "last_run_ended": record.at,
            "candidate": None if ours else state.candidate,
        }
        if record.alpha is not None and not ours:
            # A state that was lost: the run that this verdict ended has spent its alpha.
            update["ordinal"] = state.ordinal + 1
    if record.verdict is Verdict.PROMOTED:
        update |= {
            "stable": record.version,
            "previous_stable": state.stable if state.stable != record.version else state.previous_stable,
            "fallback": FallbackState(since=record.at, from_generation=floor + 1),
            "guardrail_rejections": 0,
            "rejected": tuple(entry for entry in state.rejected if entry.sha256 != record.version.sha256),
        }
    elif record.verdict in {Verdict.REJECTED, Verdict.ABORTED}:
        entry = RejectedDigest(
            version=record.version.version,
            sha256=record.version.sha256,
            phase=ENDED[record.verdict],
            reason=record.reason,
        )
        kept = [other for other in state.rejected if other.sha256 != entry.sha256]
        update["rejected"] = (*kept, entry)[-REJECTED_KEPT:]
        broke = record.parameters.get("guardrail") is True
        update["guardrail_rejections"] = state.guardrail_rejections + 1 if broke else 0
    elif record.verdict in {Verdict.FALLBACK, Verdict.RECOVERED}:
        qualified = record.parameters.get("target")
        update["fallback"] = FallbackState(
            active=record.verdict is Verdict.FALLBACK,
            reason=record.reason if record.verdict is Verdict.FALLBACK else "",
            since=record.at,
            from_generation=floor + 1,
            qualified_target=qualified if record.verdict is Verdict.RECOVERED and isinstance(qualified, str) else "",
        )
    return state.model_copy(update=update)


def verify_record(record: VerdictRecord, blocks: Sequence[Block]) -> tuple[bool, str]:
    """Recompute a gate's decision from the ledger's evidence: whether it agrees, and a sentence.

    blocks: all evidence of the version (for Fallback and Recovered of all versions); what the decision had not seen is
    left out.
    """
    limits = record.parameters.get("through")
    if record.decided_by != "gate" or not isinstance(limits, str):
        return True, f"decided by {record.decided_by} ({record.reason}), not by pairs of blocks: nothing to recompute"
    used = seen(blocks, limits)
    per_pod = record.parameters.get("blocksPerPod")
    if isinstance(per_pod, int):
        used = latest(used, per_pod)
    if evidence_sha256(used) != record.evidence_sha256:
        return False, "the evidence is not what the decision was made from: its digest differs"
    gate = GatePolicy.model_validate(_section(record.parameters, "gate."))
    if record.verdict in {Verdict.FALLBACK, Verdict.RECOVERED}:
        fallback = FallbackPolicy.model_validate(_section(record.parameters, "fallback."))
        report = evaluate_holdback(used, record.version, gate, fallback)
        move, _, message = judge_holdback(report, fallback, record.verdict is Verdict.RECOVERED)
        agrees = move is (Move.DOWN if record.verdict is Verdict.FALLBACK else Move.UP)
        said = f"{move.value}, {message}"
    else:
        versions = {Arm.CANDIDATE: record.version}
        number, digest = record.parameters.get("stable.version"), record.parameters.get("stable.sha256")
        if isinstance(number, int) and isinstance(digest, str):
            versions[Arm.STABLE] = VersionRef(version=number, sha256=digest)
        report = evaluate(used, arm=Arm.CANDIDATE, versions=versions, policy=gate, alpha=record.alpha or gate.alpha)
        decision = decide(report, gate, str(record.parameters.get("capReached") or ""))
        agrees = record.verdict in OUTCOME_ALLOWS[decision.outcome]
        said = f"{decision.outcome.value}, {decision.message}"
    agrees = agrees and report.against_target_only.interval == record.against_target_only
    recorded = "" if agrees else f"; recorded was {record.verdict.value}, {record.message}"
    return agrees, f"recomputed from {report.blocks} blocks: {said}{recorded}"


OUTCOME_ALLOWS = {
    Outcome.PROMOTE: {Verdict.PROMOTED},
    Outcome.REJECT: {Verdict.REJECTED},
    Outcome.INCONCLUSIVE: {Verdict.KEPT_STABLE, Verdict.REJECTED},
    Outcome.CONTINUE: set[Verdict](),
}


def _section(parameters: Parameters, prefix: str) -> Parameters:
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}
