"""The conditions of a Speculator, each found from the snapshot by one function. Messages say what to do."""

from speculator_operator.api.speculator import Mode
from speculator_operator.api.status import ConditionType
from speculator_operator.gate.types import Outcome as GateOutcome
from speculator_operator.reconcile.conditions import Finding, truth
from speculator_operator.reconcile.observed import Problem
from speculator_operator.reconcile.view import View
from speculator_runtime.contracts.control import RefusalReason
from speculator_runtime.contracts.ledger import Verdict

REFUSALS = frozenset(reason.value for reason in RefusalReason)
"""Why engines refuse a checkpoint; a rejection without any block is one of compatibility too."""


def find_conditions(view: View) -> list[Finding]:
    """All eight, Ready first."""
    return [
        _ready(view),
        _progressing(view),
        _compatible(view),
        _canary(view),
        _speculation(view),
        _trainer(view),
        _paused(view),
        _degraded(view),
    ]


def _ready(view: View) -> Finding:
    kind = ConditionType.READY
    if view.blocking_problem:
        return Finding(kind, "False", view.blocking_problem.reason, view.blocking_problem.message)
    if view.desired_replicas == 0:
        return Finding(kind, "False", "ScaledToZero", "nothing serves: raise spec.serving.replicas above 0")
    if view.serving:
        count = len(view.ready_engines)
        return Finding(kind, "True", "Serving", f"{count} of {view.desired_replicas} replicas serve")
    problem = next((pod.problem for pod in view.engines if pod.problem), None)
    if problem:
        return Finding(kind, "False", problem.reason, problem.message)
    ready, wanted = len(view.ready_engines), view.desired_replicas
    return Finding(kind, "False", "EnginesStarting", f"{ready} of {wanted} replicas serve; the others are starting")


def _progressing(view: View) -> Finding:
    kind = ConditionType.PROGRESSING
    if not view.serving and view.desired_replicas:
        return Finding(kind, "True", "EnginesStarting", "replicas are being brought to what the spec says")
    if view.state.candidate:
        return Finding(kind, "True", view.rollout.reason or "Canary", view.rollout.message)
    return Finding(kind, "False", view.rollout.reason or "Idle", view.rollout.message)


def _compatible(view: View) -> Finding:
    kind = ConditionType.DRAFTER_COMPATIBLE
    for ref in (view.candidate, view.state.stable):
        refusal = view.refusal(ref) if ref else None
        if ref and refusal:
            return Finding(
                kind,
                "False",
                refusal.reason or "Refused",
                f"version {ref.version} was refused by a replica: {refusal.message}",
            )
    unreadable = view.observed.ledger.unreadable
    if unreadable:
        newest = max(unreadable)
        return Finding(kind, "False", "ManifestUnreadable", f"version {newest}: {unreadable[newest]}")
    latest = max(view.history, key=lambda record: record.sequence, default=None)
    refused = latest is not None and (latest.reason in REFUSALS or latest.blocks == 0)
    if latest and latest.verdict == Verdict.REJECTED and refused:
        message = f"version {latest.version.version} does not fit: {latest.message}"
        return Finding(kind, "False", latest.reason, message)
    if view.state.stable or view.candidate:
        return Finding(kind, "True", "Loaded", "the drafter fits the target")
    return Finding(kind, "Unknown", "NoVersionYet", "no version was published yet")


def _canary(view: View) -> Finding:
    kind = ConditionType.CANARY_PASSING
    if view.state.candidate is None:
        return Finding(kind, "Unknown", "NoCanary", "no version is on trial")
    decision = view.rollout.decision
    if decision is None:
        return Finding(kind, "Unknown", view.rollout.reason or "Waiting", view.rollout.message)
    status = {GateOutcome.PROMOTE: "True", GateOutcome.REJECT: "False"}.get(decision.outcome)
    if status == "True":
        return Finding(kind, "True", decision.reason, decision.message)
    if status == "False":
        return Finding(kind, "False", decision.reason, decision.message)
    return Finding(kind, "Unknown", decision.reason, decision.message)


def _speculation(view: View) -> Finding:
    kind = ConditionType.SPECULATION_ACTIVE
    if view.mode == Mode.TARGET_ONLY:
        return Finding(kind, "False", "SwitchedOff", "spec.mode is TargetOnly; set Auto to speculate")
    if view.speculating and view.state.stable:
        return Finding(kind, "True", "StableDrafter", f"version {view.state.stable.version} drafts")
    if view.speculating:
        return Finding(kind, "True", view.rollout.safe_state.value, view.rollout.message)
    fallback = view.state.fallback
    if fallback.active:
        return Finding(
            kind,
            "False",
            fallback.reason or "Fallback",
            "the drafter does not pay on this traffic: target-only decoding until a probe or a new version does",
        )
    if view.state.stable is None:
        return Finding(kind, "False", "NoStableVersion", "no version has been promoted yet: decoding target-only")
    return Finding(kind, "False", view.rollout.reason or "TargetOnly", view.rollout.message)


def _trainer(view: View) -> Finding:
    kind = ConditionType.TRAINER_HEALTHY
    status = view.observed.trainer
    if status is not None:
        healthy = status.phase != "Failed"
        message = status.message or f"step {status.step}, {status.requests_received} requests received"
        return Finding(kind, truth(healthy), f"Trainer{status.phase}", message if not healthy else status.message)
    problem = next((pod.problem for pod in view.trainers if pod.problem), None)
    if problem:
        return Finding(kind, "False", problem.reason, problem.message)
    if not any(pod.ready for pod in view.trainers):
        return Finding(kind, "False", "TrainerStarting", "the trainer pod is not ready yet; serving does not need it")
    return Finding(
        kind, "False", "TrainerUnreachable", f"{view.observed.trainer_failure}; serving goes on, nothing is learnt"
    )


def _paused(view: View) -> Finding:
    if view.observed.speculator.spec.paused:
        message = "training, publishing and rollouts stand still; set spec.paused to false to go on"
        return Finding(ConditionType.PAUSED, "True", "PausedByUser", message)
    return Finding(ConditionType.PAUSED, "False", "NotPaused", "")


def _degraded(view: View) -> Finding:
    problem = first_problem(view)
    if problem:
        return Finding(ConditionType.DEGRADED, "True", problem.reason, problem.message)
    return Finding(ConditionType.DEGRADED, "False", "AsExpected", "")


def first_problem(view: View) -> Problem | None:
    """What is most worth a person's attention; None when all is as it should be."""
    observed = view.observed
    if view.blocking_problem:
        return view.blocking_problem
    if observed.ledger.problem:
        return observed.ledger.problem
    if view.pod_problem:
        return view.pod_problem
    for pod in view.ready_engines:
        if pod.uid in observed.agent_failures:
            text = f"pod {pod.name} serves, but its agent does not answer: {observed.agent_failures[pod.uid]}"
            return Problem("AgentUnreachable", text)
    unhealthy = next((agent for agent in view.agents if agent.last_error and not agent.engine_healthy), None)
    if unhealthy and any(pod.uid == unhealthy.pod_uid for pod in view.ready_engines):
        return Problem("EngineUnhealthy", f"pod {unhealthy.pod}: {unhealthy.last_error}")
    digests = sorted({agent.target_digest for agent in view.agents if agent.target_digest})
    if len(digests) > 1 and view.serving:
        return Problem("TargetsDiffer", f"replicas serve different targets: {', '.join(d[:12] for d in digests)}")
    if observed.trainer is not None and observed.trainer.phase == "Failed":
        return Problem("TrainerFailed", f"the trainer gave up: {observed.trainer.message}")
    return None
