"""Which transitions are worth an event. Each is told once."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from speculator_operator.api.status import Condition, ConditionType
from speculator_operator.reconcile.conditions import transitions
from speculator_operator.reconcile.outcome import EventNote
from speculator_operator.rollout import RolloutOutcome

TOLD = frozenset(
    {
        ConditionType.READY,
        ConditionType.DEGRADED,
        ConditionType.TRAINER_HEALTHY,
        ConditionType.SPECULATION_ACTIVE,
        ConditionType.PAUSED,
    }
)
BAD_WHEN = {ConditionType.DEGRADED: "True", ConditionType.TRAINER_HEALTHY: "False"}
QUIET_REASONS = frozenset({"NotPaused", "AsExpected", "EnginesStarting", "TrainerStarting", "NoStableVersion"})
"""Where things begin; told only when a condition comes back to them with another status."""


def event_notes(
    earlier: Sequence[Condition],
    later: Sequence[Condition],
    rollout: RolloutOutcome,
    hidden: Mapping[int, str],
    ignored: Mapping[str, Sequence[str]],
    now: datetime,
) -> tuple[EventNote, ...]:
    """Events of this pass: the rollout's own, versions that cannot be shown, settings that are not acted on (by the
    object and generation that they are in), conditions that changed.
    """
    state = rollout.state
    notes = [
        EventNote(event.type, event.reason, event.message, f"{state.generation}/{state.sequence}/{event.message}")
        for event in rollout.events
    ]
    notes += [
        EventNote("Warning", "VersionNotShown", f"version {number} has no SpeculatorVersion: {why}", str(number))
        for number, why in hidden.items()
    ]
    notes += [
        EventNote(
            "Warning",
            "SettingsIgnored",
            f"{where}: this release does not act on {', '.join(paths)}; remove them",
            where,
        )
        for where, paths in ignored.items()
        if paths
    ]
    had = {condition.type for condition in earlier}
    for condition in transitions(earlier, later):
        kind = ConditionType(condition.type)
        if kind not in TOLD or (condition.reason in QUIET_REASONS and condition.type not in had):
            continue
        bad = BAD_WHEN.get(kind) == condition.status and condition.reason not in QUIET_REASONS
        key = f"{condition.type}/{condition.status}/{condition.reason}/{now:%Y-%m-%dT%H:%M:%S}"
        message = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
        notes.append(EventNote("Warning" if bad else "Normal", condition.reason, message, key))
    return tuple(notes)
