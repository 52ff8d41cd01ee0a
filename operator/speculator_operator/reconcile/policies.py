"""SyncPolicy to the numbers that the rollout and the gate work with."""

from pydantic import ValidationError

from speculator_operator.api.base import number, seconds, unused_settings
from speculator_operator.api.sync_policy import CanaryStep as CanaryStepSpec
from speculator_operator.api.sync_policy import Holdback, SyncPolicySpec
from speculator_operator.gate.policy import AlphaSpending, FallbackPolicy, GatePolicy
from speculator_operator.reconcile.observed import PolicyView, Problem
from speculator_operator.rollout import CanaryStep, HoldbackPolicy, OnInconclusive, RolloutPolicy, Supersede


def resolve_rollout_policy(view: PolicyView[SyncPolicySpec], namespace: str) -> RolloutPolicy | Problem:
    """The policy in numbers, or why there is none. A missing policy never becomes a missing gate."""
    if view.spec is None:
        return view.problem or Problem("SyncPolicyMissing", f"SyncPolicy {view.name!r} cannot be read")
    source = f"{namespace}/{view.name}@{view.generation}" if view.name else "defaults"
    try:
        return rollout_policy(view.spec, source)
    except (ValidationError, ValueError) as error:
        text = "; ".join(e["msg"] for e in error.errors()) if isinstance(error, ValidationError) else str(error)
        return Problem("SyncPolicyInvalid", f"SyncPolicy {view.name or 'defaults'!r} cannot be used: {text}")


def rollout_policy(spec: SyncPolicySpec, source: str) -> RolloutPolicy:
    """The policy in numbers; raises ValueError (pydantic's too) for combinations that the gate cannot work with."""
    canary = spec.canary
    block = seconds(canary.block)
    return RolloutPolicy(
        source=source,
        gate=_gate(spec),
        block_seconds=block,
        washout_seconds=seconds(canary.washout),
        steps=tuple(_step(step) for step in canary.steps),
        max_seconds=seconds(canary.max_duration),
        on_inconclusive=OnInconclusive(canary.on_inconclusive),
        supersede=Supersede(canary.supersede),
        cool_down_seconds=seconds(canary.cooldown),
        holdback=_holdback(spec),
        fallback=_fallback(spec, block),
    )


def ignored_settings(spec: SyncPolicySpec) -> list[str]:
    """Paths of settings that somebody set and that the rollout does not act on, beside those marked as later ones."""
    ignored = list(unused_settings(spec))
    if spec.canary.guardrails.min_accept_length is not None:
        ignored.append("spec.canary.guardrails.minAcceptLength")
    default = Holdback()
    ignored += [
        f"spec.holdback.{name} (blocks are as long as the canary's)"
        for name in ("block", "washout")
        if getattr(spec.holdback, name) not in (getattr(default, name), getattr(spec.canary, name))
    ]
    return ignored


def _gate(spec: SyncPolicySpec) -> GatePolicy:
    canary = spec.canary
    return GatePolicy(
        alpha=number(canary.alpha),
        spending=AlphaSpending(canary.alpha_spending),
        min_speedup_target_only=number(canary.min_speedup_over_target_only),
        min_speedup_stable=number(canary.min_speedup_over_stable),
        burn_in_pairs=canary.burn_in_pairs,
        tightest_at_pairs=canary.tightest_at_pairs,
        max_pairs=canary.max_pairs,
        min_block_steps=canary.min_steps_per_block,
        max_error_rate_increase=max(1e-9, number(canary.guardrails.max_error_rate_increase)),
        # A bound of exactly 1 would be broken by noise half of the time; the gate asks for more than that.
        max_ttft_ratio=max(1.001, 1 + canary.guardrails.max_ttft_increase_percent / 100),
    )


def _step(step: CanaryStepSpec) -> CanaryStep:
    pause = step.pause
    return CanaryStep(
        replicas=step.replicas,
        percent=step.percent,
        pause_seconds=seconds(pause.duration) if pause and pause.duration else 0.0,
        wait_for_promote=pause is not None and pause.duration is None,
    )


def _holdback(spec: SyncPolicySpec) -> HoldbackPolicy:
    share = spec.holdback.share_percent / 100
    return HoldbackPolicy(enabled=True, target_only_share=share) if share else HoldbackPolicy(enabled=False)


def _fallback(spec: SyncPolicySpec, block_seconds: float) -> FallbackPolicy:
    fallback = spec.fallback
    # Probes of so many pairs, with the interval as rest between them: the share of time that the drafter runs.
    probing = fallback.probe_pairs * block_seconds
    share = probing / (seconds(fallback.probe_interval) + 2 * probing)
    return FallbackPolicy(
        enabled=fallback.enabled and fallback.levels.fleet,
        window_pairs=fallback.window_pairs,
        min_pairs=fallback.min_pairs,
        down_below=number(fallback.threshold),
        up_above=number(fallback.recover_threshold),
        probe_share=share,
    )
