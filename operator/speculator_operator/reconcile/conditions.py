"""Conditions: found anew each pass, merged with those that are there so that times move on transitions only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from speculator_operator.api.status import Condition, ConditionType

Tri = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Finding:
    """One condition as this pass sees it."""

    type: ConditionType
    status: Tri
    reason: str
    message: str = ""


def truth(value: bool) -> Tri:
    """A bool as a condition's status."""
    return "True" if value else "False"


def merge_conditions(
    findings: Iterable[Finding], earlier: Sequence[Condition], generation: int, now: datetime
) -> list[Condition]:
    """The list for the status, in the findings' order.

    lastTransitionTime is kept while the status of a condition stays. Conditions of a type that is not found any more
    are dropped: we are the only writer.
    """
    before = {condition.type: condition for condition in earlier}
    merged = []
    for finding in findings:
        was = before.get(finding.type.value)
        kept = was is not None and was.status == finding.status
        merged.append(
            Condition(
                type=finding.type.value,
                status=finding.status,
                reason=finding.reason,
                message=finding.message[:32768],
                last_transition_time=was.last_transition_time if was and kept else now.replace(microsecond=0),
                observed_generation=generation,
            )
        )
    return merged


def transitions(earlier: Sequence[Condition], later: Sequence[Condition]) -> list[Condition]:
    """Those whose status or reason changed: what an event is worth. New ones count only if they are not Unknown."""
    before = {condition.type: (condition.status, condition.reason) for condition in earlier}
    return [
        condition
        for condition in later
        if before.get(condition.type, ("Unknown", "")) != (condition.status, condition.reason)
        and not (condition.type not in before and condition.status == "Unknown")
    ]
