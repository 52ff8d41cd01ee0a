"""What people ask for. An action runs once, by its id; one that cannot run is refused with a sentence."""

from speculator_operator.gate import Decision, Outcome
from speculator_runtime.contracts.ledger import Verdict
from speculator_runtime.contracts.plan import VersionRef

from .canary import next_step
from .context import Pass, is_new
from .records import make_record
from .state import ActionEcho, ActionType, RejectedDigest
from .types import Action


def act(p: Pass) -> bool:
    """Carry out the action in the spec, if it is new."""
    action = p.inputs.action
    if action is None or not is_new(p, action) or p.inputs.ledger_problem:
        return False
    # A crash may have come between the record and the state: then it was carried out already.
    done = [record for record in p.inputs.history if record.decided_by == action.id]
    accepted, message = (True, done[-1].message) if done else HANDLERS[action.type](p, action)
    echo = ActionEcho(
        id=action.id, type=action.type, version=action.version, accepted=accepted, message=message, at=p.now
    )
    p.event("ActionDone" if accepted else "ActionRefused", message, "Normal" if accepted else "Warning")
    return p.change(last_action=echo)


def _promote(p: Pass, action: Action) -> tuple[bool, str]:
    run, policy = p.run, p.state.policy
    if run is None or policy is None:
        return False, "Promote: there is no candidate; Rollback takes an older version"
    if action.version not in (None, run.version.version):
        return False, f"Promote: the candidate is version {run.version.version}, not {action.version}"
    if unfit := _unfit(p, run.version):
        return False, f"Promote: {unfit}"
    report = p.canary_report()
    if run.step_passed_at is not None and report is not None:
        decision = Decision(Outcome.PROMOTE, "Faster", f"every step passed; confirmed by action {action.id}")
        if run.step + 1 < len(policy.steps):
            next_step(p, run, policy, decision, report)
            return True, f"Promote: version {run.version.version} goes on to step {run.step + 2}"
    message = f"promoted by action {action.id} at step {run.step + 1} of {len(policy.steps)}"
    record = make_record(
        p.state,
        run.version,
        Verdict.PROMOTED,
        ("PromotedByAction", message),
        p.now,
        decided_by=action.id,
        report=report,
        blocks=p.run_blocks(),
        gate=policy.gate,
        stable=p.measurable_stable,
    )
    p.conclude(record)
    return True, f"Promote: version {run.version.version} is stable"


def _abort(p: Pass, action: Action) -> tuple[bool, str]:
    run = p.run
    if run is None:
        return False, "Abort: there is no candidate"
    if action.version not in (None, run.version.version):
        return False, f"Abort: the candidate is version {run.version.version}, not {action.version}"
    reason = ("AbortedByAction", f"aborted by action {action.id}; it is not tried again until a Retry")
    p.conclude(make_record(p.state, run.version, Verdict.ABORTED, reason, p.now, decided_by=action.id))
    return True, f"Abort: version {run.version.version} is out; {_serving(p)}"


def _retry(p: Pass, action: Action) -> tuple[bool, str]:
    number = action.version
    if number is None:
        last: RejectedDigest | None = p.state.rejected[-1] if p.state.rejected else None
        if last is None:
            return False, "Retry: no version was rejected; name one"
        number = last.version
    ref = p.find(number)
    if ref is None:
        return False, f"Retry: version {number} is not in the ledger"
    if p.state.stable is not None and p.state.stable.sha256 == ref.sha256:
        return False, f"Retry: version {number} is the stable one, or has its weights"
    again = p.run is not None and p.run.version == ref
    kept = tuple(entry for entry in p.state.rejected if entry.sha256 != ref.sha256)
    p.change(retry=ref, rejected=kept, guardrail_rejections=0, candidate=None if again else p.run)
    return True, f"Retry: version {number} starts again" if again else f"Retry: version {number} is tried next"


def _rollback(p: Pass, action: Action) -> tuple[bool, str]:
    previous = p.state.previous_stable
    number = action.version if action.version is not None else previous.version if previous else None
    ref = p.find(number)
    if number is None or ref is None:
        return False, "Rollback: name a version of the ledger" if number is None else f"Rollback: no version {number}"
    if ref == p.state.stable:
        return False, f"Rollback: version {number} is the stable one already"
    for entry in p.state.rejected:
        if entry.sha256 == ref.sha256:
            return False, f"Rollback: version {number} was {entry.phase.value} ({entry.reason}); Retry it instead"
    if unfit := _unfit(p, ref):
        return False, f"Rollback: {unfit}"
    run = p.run
    if run is not None and run.version != ref:
        # Its pairs were against the old stable drafter: it starts again against the new one.
        p.change(candidate=None, retry=run.version)
    reason = ("RolledBack", f"made stable by action {action.id}")
    p.conclude(make_record(p.state, ref, Verdict.PROMOTED, reason, p.now, decided_by=action.id))
    return True, f"Rollback: version {number} is stable"


def _unfit(p: Pass, ref: VersionRef) -> str:
    """Why a version must not be made stable; empty when it may. Nobody makes a version stable blindly."""
    if p.inputs.target is None:
        return "no replica has said which target it serves; try again with a new id when one is ready"
    objection = p.objection(ref)
    return f"version {ref.version} does not fit: {objection[1]}" if objection else ""


def _serving(p: Pass) -> str:
    stable = p.state.stable
    return f"version {stable.version} serves" if stable else "target-only decoding serves"


HANDLERS = {
    ActionType.PROMOTE: _promote,
    ActionType.ABORT: _abort,
    ActionType.RETRY: _retry,
    ActionType.ROLLBACK: _rollback,
}
