"""What each replica shall run, from the state. The plan's generation grows when its content changes, and only then."""

import hashlib
import json
from collections.abc import Mapping

from speculator_runtime.contracts.plan import Arm, Plan, Switchback, VersionRef

from .context import Pass
from .policy import RolloutPolicy
from .state import SafeState
from .types import Mode


def safe_state(p: Pass) -> tuple[SafeState, VersionRef | None]:
    """What serves at rest, and the version that the Stable arm names."""
    stable = p.state.stable
    if p.inputs.mode is Mode.TARGET_ONLY:
        return SafeState.TARGET_ONLY, stable
    if p.inputs.mode is Mode.PINNED:
        pinned = p.find(p.inputs.pinned_version)
        fits = pinned is not None and not p.misfit(pinned)
        return (SafeState.STABLE, pinned) if fits else (SafeState.TARGET_ONLY, stable)
    if stable is None or p.state.fallback.active:
        return SafeState.TARGET_ONLY, stable
    return SafeState.STABLE, stable


def build_plans(p: Pass) -> Mapping[str, Plan]:
    """Plans by pod uid; moves the state's plan generation on when the content is new."""
    state, stable = safe_state(p)
    resting = Arm.STABLE if state is SafeState.STABLE else Arm.TARGET_ONLY
    run = p.run
    trying = run is not None and run.suspended_at is None and p.inputs.mode is Mode.AUTO
    rest = _content(p, resting, stable, None)
    canary = _content(p, resting, stable, run.version) if trying and run is not None else None
    content = {
        "rest": rest,
        "canary": canary,
        "pods": list(run.pods) if trying and run else [],
        "run": run and run.run_id,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    # An agent may know a higher generation than a state that was lost and restored.
    floor = max([p.state.generation, *(agent.plan_generation for agent in p.inputs.agents.values())], default=0)
    begins = max(run.first_generation if run else 0, p.state.fallback.from_generation if p.state.stable else 0)
    if digest != p.state.plan_sha256 or floor > p.state.generation or begins > p.state.generation:
        before = p.state.generation
        p.change(plan_sha256=digest, generation=floor + 1)
        _follow(p, before, floor)
    generation = p.state.generation
    plans = {}
    for pod in p.inputs.pods:
        chosen = canary if canary is not None and run is not None and pod.name in run.pods else rest
        seed = hashlib.sha256(f"{digest}/{generation}/{pod.uid}".encode()).digest()
        plan = Plan.model_validate({**chosen, "generation": generation})
        if plan.switchback is not None:
            seeded = plan.switchback.model_copy(update={"seed": int.from_bytes(seed[:4], "big")})
            plan = plan.model_copy(update={"switchback": seeded})
        plans[pod.uid] = plan
    return plans


def _follow(p: Pass, before: int, floor: int) -> None:
    """Generations that were skipped belong to nobody: what was to begin with the next one begins with the new one."""
    if floor == before:
        return
    run, fallback = p.run, p.state.fallback
    if run is not None and run.first_generation == before + 1:
        p.change_run(first_generation=floor + 1)
    if fallback.from_generation == before + 1:
        p.change(fallback=fallback.model_copy(update={"from_generation": floor + 1}))


def _content(p: Pass, resting: Arm, stable: VersionRef | None, candidate: VersionRef | None) -> dict[str, object]:
    switchback = _switchback(p, stable, candidate)
    return {
        "stable": stable.model_dump() if stable else None,
        "candidate": candidate.model_dump() if candidate else None,
        "resting_arm": resting.value,
        "switchback": switchback.model_dump(mode="json") if switchback else None,
        "shape": p.inputs.shape.model_dump(),
        "target_only_above": p.inputs.target_only_above,
    }


def _switchback(p: Pass, stable: VersionRef | None, candidate: VersionRef | None) -> Switchback | None:
    policy = p.policy
    if policy is None or p.inputs.mode is not Mode.AUTO:
        return None
    if candidate is not None:
        # Without a stable drafter, or with one that replicas cannot run, target-only is the only comparison.
        compared = p.measurable_stable is not None
        arms = (Arm.TARGET_ONLY, Arm.STABLE, Arm.CANDIDATE) if compared else (Arm.TARGET_ONLY, Arm.CANDIDATE)
        return _blocks(policy, arms, 0.0)
    if stable is None or p.refusal(stable) is not None:
        return None
    if p.state.fallback.active:
        rest = policy.block_seconds * (1 / policy.fallback.probe_share - 2)
        return _blocks(policy, (Arm.TARGET_ONLY, Arm.STABLE), rest)
    if not policy.holdback.enabled:
        return None
    return _blocks(policy, (Arm.TARGET_ONLY, Arm.STABLE), policy.holdback.rest_seconds(policy.block_seconds))


def _blocks(policy: RolloutPolicy, arms: tuple[Arm, ...], rest_seconds: float) -> Switchback:
    return Switchback(
        arms=arms,
        block_seconds=policy.block_seconds,
        washout_seconds=policy.washout_seconds,
        rest_seconds=max(0.0, rest_seconds),
        seed=0,
    )
