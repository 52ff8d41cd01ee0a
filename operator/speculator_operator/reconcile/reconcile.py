"""`reconcile(observed) -> outcome`: what shall be, from a snapshot. Pure; no clock, no randomness, no I/O."""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from speculator_operator.api.base import unused_settings
from speculator_operator.api.status import Condition, ConditionType, Phase, SpeculatorStatus
from speculator_operator.reconcile.conditions import Finding, merge_conditions
from speculator_operator.reconcile.events import event_notes
from speculator_operator.reconcile.findings import find_conditions
from speculator_operator.reconcile.observed import Observed, Problem
from speculator_operator.reconcile.outcome import Facts, Outcome
from speculator_operator.reconcile.podhealth import view_pods
from speculator_operator.reconcile.policies import ignored_settings, resolve_rollout_policy
from speculator_operator.reconcile.status import build_status, speedup_bounds
from speculator_operator.reconcile.versions import shown_versions, version_objects
from speculator_operator.reconcile.view import View
from speculator_operator.rollout import (
    Action,
    ActionType,
    LiveTarget,
    Mode,
    Pod,
    RolloutInputs,
    RolloutPolicy,
    RunState,
    advance,
    version_phases,
)
from speculator_runtime.contracts.plan import Plan
from speculator_runtime.contracts.trainer import TrainerDirective

logger = logging.getLogger(__name__)


def run_state(status: Mapping[str, Any]) -> RunState:
    """The rollout's memory from the status. One that cannot be read is lost: the ledger's history restores it."""
    try:
        return RunState.from_status(status.get("rollout"))
    except ValidationError as error:
        logger.error("status.rollout cannot be read and is rebuilt from the ledger: %s", error)
        return RunState()


def reconcile(observed: Observed, labels: Mapping[str, str]) -> Outcome:
    """Decide. `labels` are those of objects that belong to the Speculator."""
    speculator = observed.speculator
    resolved = resolve_rollout_policy(observed.sync_policy, speculator.metadata.namespace)
    policy = None if isinstance(resolved, Problem) else resolved
    rollout = advance(run_state(observed.status), rollout_inputs(observed, resolved))
    view = View(observed, rollout, policy)
    conditions = merge_conditions(
        find_conditions(view), speculator.status.conditions, speculator.metadata.generation, observed.now
    )
    directive = _directive(view)
    status = build_status(view, conditions, directive.generation)
    estimate, lower, pairs = speedup_bounds(status)
    shown = shown_versions(observed.ledger.versions, _in_use(view), speculator.spec.revision_history_limit)
    phases = version_phases(view.state, [entry.manifest for entry in shown], view.history)
    versions, hidden = version_objects(speculator, shown, phases, labels)
    return Outcome(
        verdicts=rollout.verdicts,
        status=status.wire(),
        versions=versions,
        plans=_due_plans(view),
        directive=None if _trainer_has(view, directive) else directive,
        events=event_notes(speculator.status.conditions, conditions, rollout, hidden, _ignored(observed), observed.now),
        requeue_seconds=rollout.requeue_seconds,
        busy=_busy(view),
        facts=Facts(
            stable=view.state.stable.version if view.state.stable else 0,
            candidate=view.candidate.version if view.candidate else 0,
            mode=status.mode.value if status.mode else "",
            phase=status.phase.value,
            speedup=estimate,
            speedup_lower=lower,
            pairs=pairs,
            ready_replicas=status.ready_replicas,
        ),
    )


def rollout_inputs(observed: Observed, policy: RolloutPolicy | Problem) -> RolloutInputs:
    """The snapshot in the rollout's terms."""
    spec, ledger = observed.speculator.spec, observed.ledger
    action = spec.rollout.action
    digests = {agent.target_digest for agent in observed.agents.values() if agent.target_digest}
    target = None
    if len(digests) == 1:
        target = LiveTarget(
            digest=digests.pop(), algorithm=spec.drafter.algorithm, draft_vocab_size=spec.drafter.draft_vocab_size
        )
    problem = ledger.problem.message if ledger.problem else "" if ledger.read else "the ledger was not read yet"
    return RolloutInputs(
        now=observed.now,
        policy=None if isinstance(policy, Problem) else policy,
        policy_problem=policy.message if isinstance(policy, Problem) else "",
        pods=[
            Pod(name=pod.name, uid=pod.uid, ready=pod.ready)
            for pod in view_pods(observed.pods, "engine")
            if not pod.terminating
        ],
        agents=observed.agents,
        versions=[entry.manifest for entry in ledger.versions],
        evidence=ledger.evidence,
        history=ledger.history,
        target=target,
        mode=Mode(spec.mode.value),
        pinned_version=spec.pinned_version,
        paused=spec.paused,
        action=Action(id=action.id, type=ActionType(action.type.value), version=action.version) if action else None,
        shape=spec.drafter.shape(),
        target_only_above=spec.adaptive.target_only_above,
        ledger_problem=problem,
    )


def invalid_status(
    name: str, generation: int, status: Mapping[str, Any], problems: list[str], now: datetime
) -> dict[str, Any]:
    """The status of a Speculator whose spec does not fit the model: what runs goes on, and the reason is shown."""
    try:
        earlier = SpeculatorStatus.model_validate(status)
    except ValidationError:
        earlier = SpeculatorStatus()
    text = f"spec of {name} is not valid: " + "; ".join(problems)
    findings = [
        Finding(ConditionType.READY, "False", "InvalidSpec", text),
        Finding(ConditionType.DEGRADED, "True", "InvalidSpec", text),
    ]
    kept = [c for c in earlier.conditions if c.type not in {"Ready", "Degraded"}]
    conditions: list[Condition] = [*merge_conditions(findings, earlier.conditions, generation, now), *kept]
    update = {
        "observed_generation": generation,
        "phase": Phase.DEGRADED,
        "message": text[:4096],
        "conditions": conditions,
    }
    return earlier.model_copy(update=update).wire()


def _ignored(observed: Observed) -> dict[str, list[str]]:
    """Settings that somebody set and nothing acts on: told, never passed over in silence."""
    meta, training, sync = observed.speculator.metadata, observed.training_policy, observed.sync_policy
    found = {f"Speculator {meta.name} generation {meta.generation}": list(unused_settings(observed.speculator.spec))}
    if training.spec:
        found[f"TrainingPolicy {training.name} generation {training.generation}"] = list(unused_settings(training.spec))
    if sync.spec:
        found[f"SyncPolicy {sync.name} generation {sync.generation}"] = ignored_settings(sync.spec)
    return found


def _in_use(view: View) -> set[int]:
    state = view.state
    refs = (state.stable, state.previous_stable, state.retry, view.candidate)
    return {ref.version for ref in refs if ref is not None}


def _due_plans(view: View) -> dict[str, Plan]:
    """Plans for agents that answered and follow an older generation. The others get theirs when they answer."""
    agents = view.observed.agents
    return {
        uid: plan
        for uid, plan in view.rollout.plans.items()
        if uid in agents and agents[uid].plan_generation < plan.generation
    }


def _directive(view: View) -> TrainerDirective:
    """What is wanted of the trainer; a new generation when it differs from what was last said."""
    observed = view.observed
    digests = {agent.target_digest for agent in view.agents if agent.target_digest}
    last = observed.last_directive
    content = {
        "paused": observed.speculator.spec.paused,
        "publishing_frozen": view.rollout.freeze_publishing,
        "target_digest": digests.pop() if len(digests) == 1 else (last.target_digest if last else None),
    }
    if last is not None and last.model_dump(include=set(content)) == content:
        return last
    heard = observed.trainer.directive_generation if observed.trainer else 0
    known = max(heard, observed.speculator.status.directive_generation, last.generation if last else 0)
    return TrainerDirective(generation=known + 1, **content)


def _trainer_has(view: View, directive: TrainerDirective) -> bool:
    trainer = view.observed.trainer
    return trainer is None or trainer.directive_generation >= directive.generation


def _busy(view: View) -> bool:
    """Whether to look again soon: a canary runs, replicas start, or a replica does not follow its plan yet."""
    behind = any(agent.plan_generation != view.state.generation for agent in view.agents)
    return view.state.candidate is not None or behind or (not view.serving and view.desired_replicas > 0)
