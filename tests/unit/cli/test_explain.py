"""explain answers for each state a Speculator may be in, from the status alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

from speculator_operator.cli.explain import explain

NOW = datetime(2026, 12, 1, tzinfo=UTC)
DIGEST = "a" * 64


def speculator(status: dict[str, Any], generation: int = 1, **spec: Any) -> dict[str, Any]:
    full = {"observedGeneration": 1, "phase": "Stable", "message": "said by the operator", **status} if status else {}
    return {"metadata": {"name": "chat", "generation": generation}, "spec": spec, "status": full}


def version(number: int, phase: str, **status: Any) -> dict[str, Any]:
    return {"spec": {"version": number, "sha256": DIGEST}, "status": {"phase": phase, "decidedBy": "gate", **status}}


def on_trial(passed: datetime | None = None, **step: Any) -> dict[str, Any]:
    run: dict[str, Any] = {"phase": "Canary", "step": 0}
    if passed:
        run["stepPassedAt"] = passed.isoformat()
    policy = {"gate": {"burnInPairs": 10, "maxPairs": 60}, "steps": [step], "onInconclusive": "Reject"}
    candidate = {"version": 4, "sha256": DIGEST}
    return {"candidate": candidate, "step": "1/2", "rollout": {"candidate": run, "policy": policy}}


def test_without_a_status_the_operator_is_to_be_looked_for():
    found = explain(speculator({}), [], NOW)
    assert found.answer == "The operator has not looked at this Speculator yet."
    assert "kubectl get deployment" in found.next_steps[0]


def test_paused_comes_before_everything_else():
    found = explain(speculator(on_trial(), paused=True), [], NOW)
    assert found.answer.startswith("It is paused")
    assert found.next_steps == ("kubectl speculator resume chat",)


def test_a_mode_that_promotes_nothing_is_named():
    found = explain(speculator({}, mode="TargetOnly") | {"status": {"phase": "TargetOnly"}}, [], NOW)
    assert found.answer == "Mode is TargetOnly: nothing is promoted in it."


def test_a_candidate_before_the_burn_in_has_no_bound_yet():
    found = explain(speculator(on_trial()), [], NOW)
    assert found.answer == "Version 4 is on trial, step 1/2: there is not enough evidence yet."
    assert "No bound is looked at before 10 pairs of blocks." in found.because
    assert "If 60 pairs do not decide, it is rejected." in found.because


def test_a_candidate_with_bounds_is_held_against_the_bar():
    measured = {"estimate": "1.05", "lower": "0.97", "upper": "1.14", "pairs": 22}
    found = explain(speculator({**on_trial(), "speedup": measured}), [], NOW)
    assert found.because[0].endswith("after 22 pairs: the lower bound 0.970 must pass the bar of 1.00.")


def test_a_step_that_waits_for_a_person_says_so_and_offers_promote_first():
    found = explain(speculator(on_trial(NOW, waitForPromote=True)), [], NOW)
    assert found.answer == "Version 4 passed step 1/2; the step waits for a person: promote lets it go on."
    assert found.next_steps[0] == "kubectl speculator promote chat"


def test_a_pause_by_the_clock_says_how_long_it_lasts():
    found = explain(speculator(on_trial(NOW - timedelta(seconds=20), pauseSeconds=60.0)), [], NOW)
    assert found.answer == "Version 4 passed step 1/2; its pause ends in 40 s."


def test_without_a_version_the_trainer_is_asked():
    trainer = {"phase": "WaitingForTraces", "requestsReceived": 3, "step": 0}
    found = explain(speculator({"trainer": trainer}), [], NOW)
    assert found.answer == "No version has been published yet: the drafter is still learning."
    assert "The trainer is in phase WaitingForTraces: 3 requests received, step 0." in found.because


def test_a_rejected_version_shows_its_figures_and_how_to_retry():
    against = {"estimate": "0.9", "lower": "0.85", "upper": "0.95", "pairs": 40}
    rejected = version(4, "Rejected", message="it is slower", againstTargetOnly=against)
    found = explain(speculator({"stable": {"version": 3}}), [version(3, "Promoted"), rejected], NOW)
    assert found.answer.startswith("The newest version, 4, was rejected;")
    assert found.because[:2] == (
        "Decided by gate: it is slower",
        "Speedup over target-only decoding 0.900 [0.850, 0.950] from 40 pairs.",
    )
    assert found.next_steps[0] == "kubectl speculator retry chat 4"


def test_a_promoted_version_in_fallback_is_not_said_to_serve():
    status = {
        "stable": {"version": 3},
        "fallback": {"active": True, "reason": "Slower", "since": "2026-11-30T23:00:00Z"},
    }
    found = explain(speculator(status), [version(3, "Promoted")], NOW)
    assert found.answer == "Version 3 was promoted, but does not pay at present: replicas decode target-only."
    assert found.because[0] == "Fallback since 60m: Slower."


def test_conditions_that_are_not_as_wanted_a_refused_action_and_an_unseen_spec_are_reasons():
    conditions = [
        {"type": "Ready", "status": "True", "reason": "Serving", "message": ""},
        {"type": "TrainerHealthy", "status": "False", "reason": "TrainerStarting", "message": "not ready yet"},
    ]
    action = {"id": "abort.me.1", "result": "Refused", "message": "Abort: there is no candidate"}
    status = {"conditions": conditions, "lastAction": action, "stable": {"version": 3}}
    found = explain(speculator(status, generation=2), [version(3, "Promoted", message="faster")], NOW)
    assert found.because == (
        "Decided by gate: faster",
        "The operator has not seen the latest change of the spec yet.",
        "The last action, abort.me.1, was refused: Abort: there is no candidate.",
        "TrainerHealthy is False (TrainerStarting): not ready yet",
    )
