"""Why is it not promoted? Answered from status, conditions and verdicts alone. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from speculator_operator.cli import show
from speculator_operator.cli.cluster import KubeObject

WANTED = {
    "Ready": "True",
    "DrafterCompatible": "True",
    "SpeculationActive": "True",
    "TrainerHealthy": "True",
    "Degraded": "False",
}
"""What a condition says when all is well. Progressing, CanaryPassing and Paused are told in the answer itself."""


@dataclass(frozen=True)
class Explanation:
    """One sentence, what it rests on, and what may be done."""

    answer: str
    because: tuple[str, ...]
    next_steps: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """For programs."""
        return {"answer": self.answer, "because": list(self.because), "next": list(self.next_steps)}


def explain(speculator: KubeObject, versions: Sequence[KubeObject], now: datetime) -> Explanation:
    """What stands between the newest version and promotion, or the last answer the gate gave."""
    spec, status = speculator["spec"], speculator.get("status") or {}
    name = speculator["metadata"]["name"]
    answer, because, steps = _answer(name, spec, status, versions, now)
    if status.get("observedGeneration", 0) < speculator["metadata"].get("generation", 0) and status:
        because.append("The operator has not seen the latest change of the spec yet.")
    action = status.get("lastAction") or {}
    if action.get("result") == "Refused":
        because.append(f"The last action, {action['id']}, was refused: {action.get('message', '')}.")
    for condition in status.get("conditions") or []:
        if condition["type"] == "SpeculationActive" and not status.get("stable"):
            continue  # Before a first promotion it cannot be, which the answer says already.
        wanted = WANTED.get(condition["type"])
        if wanted and condition["status"] not in (wanted, "Unknown"):
            because.append(
                f"{condition['type']} is {condition['status']} ({condition['reason']}): {condition.get('message', '')}"
            )
    return Explanation(answer, tuple(dict.fromkeys(because)), tuple(steps))


Parts = tuple[str, list[str], list[str]]


def _answer(
    name: str, spec: dict[str, Any], status: dict[str, Any], versions: Sequence[KubeObject], now: datetime
) -> Parts:
    """The first thing that holds, from the outside in: operator, pause, mode, candidate, verdict, training."""
    if not status:
        return (
            "The operator has not looked at this Speculator yet.",
            [],
            ["See whether the operator runs: kubectl get deployment -A -l app.kubernetes.io/name=speculator-operator"],
        )
    message = status.get("message", "")
    if spec.get("paused"):
        return "It is paused: training, publishing and rollouts stand still.", [], [f"kubectl speculator resume {name}"]
    if spec.get("mode", "Auto") != "Auto":
        return (
            f"Mode is {spec['mode']}: nothing is promoted in it.",
            [message],
            [f"kubectl speculator auto {name}"],
        )
    if status.get("candidate"):
        return _on_trial(name, status, now)
    newest = max(versions, key=lambda obj: int(obj["spec"]["version"]), default=None)
    if newest is None:
        return _no_version(status)
    return _decided(name, status, newest, now)


def _on_trial(name: str, status: dict[str, Any], now: datetime) -> Parts:
    rollout = status.get("rollout") or {}
    run, policy = rollout.get("candidate") or {}, rollout.get("policy") or {}
    number = status["candidate"]["version"]
    steps = [f"kubectl speculator abort {name}", f"kubectl speculator promote {name}"]
    if run.get("phase") == "Validating":
        return (
            f"Version {number} is being validated and loaded; no replica runs it yet.",
            [status["message"]],
            steps[:1],
        )
    because = []
    gate = policy.get("gate") or {}
    measured = status.get("speedup")
    burn_in, most = gate.get("burnInPairs"), gate.get("maxPairs")
    if measured:
        bar = float(gate.get("minSpeedupTargetOnly", 1.0))
        lower = float(measured["lower"])
        verb = "is above" if lower > bar else "must pass"
        because.append(
            f"Speedup over target-only decoding {show.speedup(measured)} after {measured['pairs']} pairs: the lower "
            f"bound {lower:.3f} {verb} the bar of {bar:.2f}."
        )
    elif burn_in:
        because.append(f"No bound is looked at before {burn_in} pairs of blocks.")
    waiting = _pause(run, policy, now)
    if waiting:
        return f"Version {number} passed step {status.get('step')}; {waiting}.", because, steps[::-1]
    if most:
        undecided = {"Hold": "it is kept out without being rejected", "Reject": "it is rejected"}
        outcome = undecided.get(policy.get("onInconclusive", "Hold"), "it is not promoted")
        because.append(f"If {most} pairs do not decide, {outcome}.")
    because.append(f"The gate says: {status['message']}")
    return f"Version {number} is on trial, step {status.get('step')}: there is not enough evidence yet.", because, steps


def _pause(run: dict[str, Any], policy: dict[str, Any], now: datetime) -> str:
    """What a step that passed waits for; empty if it did not pass or waits for nothing."""
    passed = show.moment(run.get("stepPassedAt"))
    ladder = policy.get("steps") or []
    index = run.get("step", 0)
    if passed is None or index >= len(ladder):
        return ""
    step = ladder[index]
    if step.get("waitForPromote"):
        return "the step waits for a person: promote lets it go on"
    ends = passed + timedelta(seconds=float(step.get("pauseSeconds", 0)))
    return f"its pause ends in {int((ends - now).total_seconds())} s" if ends > now else ""


def _no_version(status: dict[str, Any]) -> Parts:
    trainer = status.get("trainer")
    because = [status.get("message", "")]
    if trainer is None:
        because.append("The trainer has not answered yet.")
    else:
        because.append(
            f"The trainer is in phase {trainer.get('phase')}: {trainer.get('requestsReceived', 0)} requests received, "
            f"step {trainer.get('step', 0)}{'; ' + trainer['message'] if trainer.get('message') else ''}."
        )
    return (
        "No version has been published yet: the drafter is still learning.",
        because,
        ["Send traffic: the first version comes after spec.publish.firstAfterRequests of the SyncPolicy."],
    )


def _decided(name: str, status: dict[str, Any], newest: KubeObject, now: datetime) -> Parts:
    number, own = newest["spec"]["version"], newest.get("status") or {}
    phase = own.get("phase", "Published")
    said, by = own.get("message") or own.get("reason") or "no message", own.get("decidedBy") or "the gate"
    verdict = said if by in said else f"Decided by {by}: {said}"
    stable = status.get("stable") or {}
    if stable.get("version") == number:
        fallback = status.get("fallback") or {}
        if fallback.get("active"):
            return (
                f"Version {number} was promoted, but does not pay at present: replicas decode target-only.",
                [f"Fallback since {show.age(fallback.get('since'), now)}: {fallback.get('reason')}.", verdict],
                ["Nothing to do: probes bring it back when it pays again, or a new version does."],
            )
        return f"It is: version {number} is promoted and serves.", [verdict], []
    if phase in ("Rejected", "Aborted", "Expired"):
        words = {
            "Rejected": "was rejected",
            "Aborted": "was aborted by a person",
            "Expired": "was not decided within its limits, so stable stayed",
        }
        because = [verdict]
        if own.get("againstTargetOnly"):
            measured = own["againstTargetOnly"]
            because.append(
                f"Speedup over target-only decoding {show.speedup(measured)} from {measured['pairs']} pairs."
            )
        if own.get("againstStable"):
            measured = own["againstStable"]
            because.append(f"Speedup over the stable version {show.speedup(measured)} from {measured['pairs']} pairs.")
        return (
            f"The newest version, {number}, {words[phase]}; the next one the trainer publishes is tried by itself.",
            because,
            [f"kubectl speculator retry {name} {number}", f"kubectl speculator verify {name} {number}"],
        )
    if phase == "Superseded":
        return (
            f"Version {number} was promoted and later replaced by version {stable.get('version')}.",
            [verdict],
            [f"kubectl speculator rollback {name} --to-version {number}"],
        )
    return f"Version {number} is published and waits to be tried.", [status.get("message", "")], []
