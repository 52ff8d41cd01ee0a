"""The rollout state machine: which drafter version serves, which one is tried, and why. Pure, with time passed in.

The seam, for whoever calls it (reconcile) and applies it (kube):

    state = RunState.from_status(status.get("rollout"))            # RunState() for a new Speculator
    outcome = advance(state, RolloutInputs(now=..., policy=..., pods=..., agents=..., versions=..., evidence=..., ...))

Apply an outcome in this order; a crash in between is repaired by the next call:

1. `outcome.verdicts`: write each to the ledger under its version, by `sequence`. If that sequence exists already, keep
   what is there (the next call adopts it).
2. `outcome.state.to_status()`: into the status, if it differs from what is there.
3. `outcome.plans[pod.uid]`: PUT to each pod's agent whose `plan_generation` is older.
4. `outcome.events`: show. They come on transitions only.

What to feed in:

- `history`: verdict records with `sequence > state.sequence`; for a state that was lost (a new Speculator over an old
  prefix) all records of the ledger: the stable version, rejected digests and counters are restored from them.
- `evidence`: all stored blocks of plan generations >= `oldest_generation(state)`. New blocks of generation G are
  stored under the version that `evidence_owner(state, G)` names; None: not stored. Ask agents for `state.generation`.
- `policy`: the SyncPolicy resolved into `RolloutPolicy` (with its `GatePolicy`); None when it cannot be resolved, and
  why in `policy_problem`. The policy is pinned in the state while a run lasts; pass the current one always.
- `target`: what agents report; None until one has.

Called twice with the same inputs it answers the same; called again with its own state it changes nothing. It never
waits without saying why in `message`. `version_phases(...)` gives the phase of each SpeculatorVersion.
`verify_record(...)` recomputes a gate's decision from its evidence.
"""

from speculator_operator.gate.policy import FallbackPolicy

from .evidence import evidence_owner, oldest_generation
from .machine import TRANSITIONS, advance
from .phases import version_phases
from .policy import CanaryStep, HoldbackPolicy, OnInconclusive, RolloutPolicy, Supersede
from .records import verify_record
from .state import ActionEcho, ActionType, CandidateRun, FallbackState, RunState, SafeState, VersionPhase
from .types import Action, LiveTarget, Mode, PhaseReport, Pod, RolloutEvent, RolloutInputs, RolloutOutcome

__all__ = [
    "TRANSITIONS",
    "Action",
    "ActionEcho",
    "ActionType",
    "CanaryStep",
    "CandidateRun",
    "FallbackPolicy",
    "FallbackState",
    "HoldbackPolicy",
    "LiveTarget",
    "Mode",
    "OnInconclusive",
    "PhaseReport",
    "Pod",
    "RolloutEvent",
    "RolloutInputs",
    "RolloutOutcome",
    "RolloutPolicy",
    "RunState",
    "SafeState",
    "Supersede",
    "VersionPhase",
    "advance",
    "evidence_owner",
    "oldest_generation",
    "verify_record",
    "version_phases",
]
