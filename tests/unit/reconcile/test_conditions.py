"""Conditions move their times on transitions only, and say for which generation they hold."""

from datetime import UTC, datetime, timedelta

from speculator_operator.api.status import ConditionType
from speculator_operator.reconcile.conditions import Finding, merge_conditions, transitions, truth

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def ready(status, reason="Serving", message="ok") -> Finding:
    return Finding(ConditionType.READY, status, reason, message)


def test_a_new_condition_begins_now_without_fractions_of_a_second() -> None:
    (condition,) = merge_conditions([ready("True")], [], 3, NOW.replace(microsecond=123))
    assert condition.last_transition_time == NOW
    assert condition.observed_generation == 3


def test_the_time_stays_while_the_status_stays_even_if_the_reason_changes() -> None:
    before = merge_conditions([ready("False", "Starting")], [], 1, NOW)
    (after,) = merge_conditions([ready("False", "CrashLooping", "engine")], before, 2, LATER)
    assert after.last_transition_time == NOW
    assert (after.reason, after.message, after.observed_generation) == ("CrashLooping", "engine", 2)


def test_the_time_moves_with_the_status() -> None:
    before = merge_conditions([ready("False")], [], 1, NOW)
    (after,) = merge_conditions([ready("True")], before, 1, LATER)
    assert after.last_transition_time == LATER


def test_merging_the_same_findings_again_changes_nothing() -> None:
    before = merge_conditions([ready("True")], [], 1, NOW)
    assert merge_conditions([ready("True")], before, 1, LATER) == before


def test_transitions_are_changes_of_status_or_reason() -> None:
    before = merge_conditions([ready("False", "Starting")], [], 1, NOW)
    same = merge_conditions([ready("False", "Starting", "2 of 3")], before, 1, LATER)
    crash = merge_conditions([ready("False", "CrashLooping")], before, 1, LATER)
    assert transitions(before, same) == []
    assert transitions(before, crash) == crash


def test_a_condition_that_begins_unknown_is_no_transition() -> None:
    unknown = merge_conditions([ready("Unknown", "NotYet")], [], 1, NOW)
    known = merge_conditions([ready("True")], [], 1, NOW)
    assert transitions([], unknown) == []
    assert transitions([], known) == known


def test_truth() -> None:
    assert (truth(True), truth(False)) == ("True", "False")
