"""A SyncPolicy in the gate's numbers; one that cannot be used is a problem, never a missing gate."""

import pytest

from speculator_operator.api.sync_policy import SyncPolicySpec
from speculator_operator.reconcile.observed import PolicyView, Problem
from speculator_operator.reconcile.policies import resolve_rollout_policy, rollout_policy
from speculator_operator.rollout import RolloutPolicy


def spec(**canary) -> SyncPolicySpec:
    return SyncPolicySpec.model_validate({"canary": canary})


def test_the_defaults_are_usable() -> None:
    policy = resolve_rollout_policy(PolicyView(SyncPolicySpec()), "ns")
    assert isinstance(policy, RolloutPolicy)
    assert policy.source == "defaults"


def test_durations_and_decimals_become_numbers() -> None:
    policy = rollout_policy(
        spec(
            block="1m30s",
            washout="500ms",
            alpha="0.01",
            minSpeedupOverTargetOnly="1.10",
            maxDuration="4h",
            cooldown="0s",
        ),
        "x",
    )
    assert (policy.block_seconds, policy.washout_seconds) == (90.0, 0.5)
    assert (policy.gate.alpha, policy.gate.min_speedup_target_only) == (0.01, 1.10)
    assert (policy.max_seconds, policy.cool_down_seconds) == (14400.0, 0.0)


def test_steps_keep_their_pauses() -> None:
    steps = rollout_policy(
        spec(steps=[{"replicas": 1, "pause": {"duration": "10m"}}, {"percent": 50, "pause": {}}, {"percent": 100}]), "x"
    ).steps
    assert [(s.replicas, s.percent, s.pause_seconds, s.wait_for_promote) for s in steps] == [
        (1, None, 600.0, False),
        (None, 50, 0.0, True),
        (None, 100, 0.0, False),
    ]


def test_guardrails_in_percent_become_ratios_and_zero_is_a_hair_above_one() -> None:
    assert rollout_policy(spec(guardrails={"maxTtftIncreasePercent": 40}), "x").gate.max_ttft_ratio == 1.4
    assert rollout_policy(spec(guardrails={"maxTtftIncreasePercent": 0}), "x").gate.max_ttft_ratio > 1.0


def test_holdback_of_zero_percent_is_off() -> None:
    policy = rollout_policy(SyncPolicySpec.model_validate({"holdback": {"sharePercent": 0}}), "x")
    assert not policy.holdback.enabled
    assert rollout_policy(SyncPolicySpec(), "x").holdback.target_only_share == 0.05


def test_probes_take_their_share_of_time() -> None:
    policy = rollout_policy(
        SyncPolicySpec.model_validate(
            {"canary": {"block": "30s"}, "fallback": {"probePairs": 10, "probeInterval": "10m"}}
        ),
        "x",
    )
    # 10 pairs of 30 s blocks take 600 s, half of it drafting, then 600 s of rest.
    assert policy.fallback.probe_share == pytest.approx(300 / 1200)


def test_fallback_is_off_when_the_fleet_level_is() -> None:
    policy = rollout_policy(SyncPolicySpec.model_validate({"fallback": {"levels": {"fleet": False}}}), "x")
    assert not policy.fallback.enabled


def test_the_source_names_the_policy_and_its_generation() -> None:
    policy = resolve_rollout_policy(PolicyView(SyncPolicySpec(), "fast", 7), "ns")
    assert isinstance(policy, RolloutPolicy)
    assert policy.source == "ns/fast@7"


def test_a_missing_policy_is_its_problem() -> None:
    missing = Problem("SyncPolicyMissing", "SyncPolicy ns/fast does not exist; create it")
    assert resolve_rollout_policy(PolicyView(None, "fast", 0, missing), "ns") is missing


def test_values_that_the_gate_does_not_take_are_a_problem_that_names_the_policy() -> None:
    policy = spec()
    odd = policy.model_copy(update={"canary": policy.canary.model_copy(update={"max_pairs": 5})})
    problem = resolve_rollout_policy(PolicyView(odd, "odd", 1), "ns")
    assert isinstance(problem, Problem)
    assert problem.reason == "SyncPolicyInvalid"
    assert "'odd'" in problem.message


def test_a_policy_that_cannot_be_read_and_does_not_say_why_is_still_no_policy() -> None:
    problem = resolve_rollout_policy(PolicyView(None, "odd"), "ns")
    assert isinstance(problem, Problem)
    assert "'odd'" in problem.message
