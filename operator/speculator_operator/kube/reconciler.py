"""One pass over one Speculator: read, decide (pure), carry out. All memory in here may be lost at any time.

Order: owned objects; blocks into S3; the decision; verdicts into S3; status; plans and directive; SpeculatorVersions;
events. A crash between any two is repaired by the next pass, of this process or of another.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from speculator_operator.api.base import FINALIZER, InvalidResource
from speculator_operator.api.speculator import Speculator
from speculator_operator.kube import observe
from speculator_operator.kube.agents import CallFailure, PodClients
from speculator_operator.kube.applier import Applier, ObjectId, owned_by
from speculator_operator.kube.cleanup import OWNED_KINDS, add_finalizer, drop_finalizer, remove_owned, selector
from speculator_operator.kube.client import Kube, KubeError, KubeObject, gather_objects
from speculator_operator.kube.events import post_event
from speculator_operator.kube.ledger import LedgerSession
from speculator_operator.kube.workers import Again, Key
from speculator_operator.metrics import OperatorMetrics
from speculator_operator.reconcile.observed import LedgerView, Observed, Problem
from speculator_operator.reconcile.outcome import Outcome
from speculator_operator.reconcile.podhealth import view_pods
from speculator_operator.reconcile.reconcile import invalid_status, reconcile, run_state
from speculator_operator.resources import CannotBuild, build_objects, common_labels
from speculator_operator.resources.configmap import store_settings
from speculator_operator.rollout import RunState, evidence_owner
from speculator_operator.settings import OperatorSettings
from speculator_runtime.contracts.plan import Block
from speculator_runtime.contracts.trainer import TrainerDirective

logger = logging.getLogger(__name__)
FIGURES_SECONDS = 15.0
CONFLICT_SECONDS = 0.2
Live: TypeAlias = Mapping[ObjectId, KubeObject] | None


@dataclass
class _Memory:
    """What is remembered of a Speculator between passes; losing it costs reads, never correctness."""

    uid: str
    applier: Applier
    ledger: LedgerSession | None = None
    directive: TrainerDirective | None = None
    objects_due: float = float("-inf")
    figures_due: float = float("-inf")
    problems: tuple[Problem, ...] = ()
    written: tuple[dict[str, Any], dict[str, Any]] | None = None
    """The status last sent, and as the server gave it back."""
    versions_digest: str = ""
    told: set[tuple[str, str]] = field(default_factory=set)
    """Events posted; posting one again would be refused as a duplicate, and cost a request."""


@dataclass
class Reconciler:
    """Callable by the workers."""

    kube: Kube
    clients: PodClients
    executor: Executor
    settings: OperatorSettings
    metrics: OperatorMetrics
    fence: Callable[[], float]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic
    _memories: dict[Key, _Memory] = field(default_factory=dict)

    def touch_objects(self, key: Key) -> None:
        """Owned objects changed: look at them in the next pass."""
        memory = self._memories.get(key)
        if memory is not None:
            memory.objects_due = float("-inf")

    def forget_all(self) -> None:
        """Leadership was lost or gained: nothing remembered is known to hold."""
        for key in list(self._memories):
            self._forget(key)

    async def __call__(self, key: Key) -> Again:
        """One pass. Raises KubeError and NotLeaderError; everything else that fails becomes a condition."""
        with self.metrics.reconcile_seconds.time():
            try:
                return await self._one(key)
            except KubeError as error:
                if not error.conflict:
                    raise
                # Somebody wrote in between: decide again on what is there now, never on top of it.
                logger.info("%s: %s; looking again", key, error)
                return Again(CONFLICT_SECONDS)

    async def _one(self, key: Key) -> Again:
        raw = await self.kube.get("Speculator", key.namespace, key.name)
        if raw is None:
            self._forget(key)
            return Again(None)
        if raw["metadata"].get("deletionTimestamp"):
            return await self._delete(key, raw)
        if FINALIZER not in (raw["metadata"].get("finalizers") or []):
            raw = await add_finalizer(self.kube, raw)
        try:
            speculator = Speculator.parse(raw)
        except InvalidResource as error:
            return await self._refuse(key, raw, error)
        return await self._pass(key, raw, speculator)

    async def _pass(self, key: Key, raw: KubeObject, speculator: Speculator) -> Again:
        memory = self._memory(key, speculator)
        training, sync, credentials, pods = await asyncio.gather(
            observe.read_training_policy(self.kube, speculator),
            observe.read_sync_policy(self.kube, speculator),
            observe.read_credentials(self.kube, speculator),
            self.kube.list("Pod", key.namespace, selector(key.name)),
        )
        tokens, live = await self._objects(memory, speculator, training.spec, sync.spec)
        engines, trainers = view_pods(pods, "engine"), view_pods(pods, "trainer")
        state = run_state(raw.get("status") or {})
        agents, trainer, ledger = await asyncio.gather(
            observe.read_agents(self.clients, engines, tokens.get("agent-token", "")),
            observe.read_trainer(self.clients, trainers, tokens.get("trainer-token", "")),
            self._look(memory, speculator, credentials, state),
        )
        if ledger.problem is None and ledger.read:
            ledger = await self._collect(key, memory, ledger, state, engines, agents.states, tokens)
        observed = Observed(
            now=self.now(),
            speculator=speculator,
            status=raw.get("status") or {},
            training_policy=training,
            sync_policy=sync,
            credentials=credentials.problem,
            pods=tuple(pods),
            agents=agents.states,
            agent_failures=agents.failures,
            trainer=trainer.status,
            trainer_failure=trainer.failure,
            last_directive=memory.directive,
            ledger=ledger,
            object_problems=memory.problems,
            refresh_figures=self.monotonic() >= memory.figures_due,
        )
        outcome = reconcile(observed, common_labels(speculator))
        for verdict in outcome.verdicts:
            problem = await self._session(memory).record(verdict)
            if problem is not None:
                # Not decided until it is written: the next pass sees the ledger's problem and says so.
                logger.warning("%s: verdict on version %s not written: %s", key, verdict.version, problem.message)
                return Again(self.settings.loops.rollout_seconds)
            self.metrics.verdicts.labels(*key, verdict.verdict.value).inc()
        await self._write_status(memory, raw, outcome.status)
        await self._tell(memory, outcome, observed, engines, trainer, tokens)
        await self._versions(memory, speculator, outcome, ledger, live)
        for note in outcome.events:
            if (note.reason, note.key) not in memory.told:
                await post_event(self.kube, raw, note, observed.now)
                memory.told.add((note.reason, note.key))
        self._show(key, outcome)
        return Again(self._pause(outcome))

    def _pause(self, outcome: Outcome) -> float:
        loops = self.settings.loops
        pause = loops.rollout_seconds if outcome.busy else loops.idle_seconds
        return pause if outcome.requeue_seconds is None else max(0.2, min(pause, outcome.requeue_seconds))

    async def _objects(
        self, memory: _Memory, speculator: Speculator, training: Any, sync: Any
    ) -> tuple[dict[str, str], Live]:
        """Bring owned objects to what is desired; returns the tokens, and the owned objects if they were listed."""
        meta = speculator.metadata
        secret = await self.kube.get("Secret", meta.namespace, f"{meta.name}-tokens")
        tokens = observe.secret_values(secret) if secret and owned_by(secret, meta.uid) else {}
        live = None
        if self.monotonic() >= memory.objects_due:
            listed = await gather_objects(self.kube, OWNED_KINDS, meta.namespace, selector(meta.name))
            live = {ObjectId(obj["kind"], obj["metadata"]["name"]): obj for obj in listed}
        try:
            desired, tokens = build_objects(speculator, training, sync, tokens, self.settings.images)
        except CannotBuild as error:
            # What runs is left as it is; a missing policy is told by its own condition.
            resolved = training is not None and sync is not None
            memory.problems = (Problem(error.reason, error.message),) if resolved else ()
            return tokens, live
        memory.problems = await memory.applier.ensure(desired, live)
        if live is not None:
            await memory.applier.prune(desired, live)
            memory.objects_due = self.monotonic() + self.settings.loops.objects_seconds
        return tokens, live

    async def _look(
        self, memory: _Memory, speculator: Speculator, credentials: observe.CredentialsView, state: RunState
    ) -> LedgerView:
        if credentials.problem is not None:
            return LedgerView(problem=credentials.problem)
        store = store_settings(speculator)
        session = memory.ledger
        if session is None or (session.settings, session.credentials) != (store, credentials.credentials):
            session = memory.ledger = LedgerSession(
                store,
                credentials.credentials,
                self.executor,
                self.fence,
                poll_seconds=self.settings.loops.ledger_seconds,
                monotonic=self.monotonic,
            )
        refs = (state.stable, state.candidate.version if state.candidate else None)
        return await session.look(ref.version for ref in refs if ref is not None)

    def _session(self, memory: _Memory) -> LedgerSession:
        if memory.ledger is None:
            raise RuntimeError("a verdict without a ledger: reconcile decided although the ledger was not read")
        return memory.ledger

    async def _collect(
        self,
        key: Key,
        memory: _Memory,
        ledger: LedgerView,
        state: RunState,
        engines: Any,
        states: Any,
        tokens: dict[str, str],
    ) -> LedgerView:
        """New blocks of the plan in force, stored as evidence before they count."""
        owner = evidence_owner(state, state.generation)
        if owner is None:
            return ledger
        stored = observe.last_indices(ledger.evidence, state.generation)
        blocks: list[Block] = await observe.read_blocks(
            self.clients, engines, states, tokens.get("agent-token", ""), state.generation, stored
        )
        if not blocks:
            return ledger
        session = self._session(memory)
        result = await session.store_blocks(owner.version, blocks)
        if isinstance(result, int):
            for block in blocks:
                self.metrics.blocks.labels(*key, block.arm.value).inc()
        refs = (state.stable, state.candidate.version if state.candidate else None)
        return await session.look(ref.version for ref in refs if ref is not None)

    async def _write_status(self, memory: _Memory, raw: KubeObject, status: dict[str, Any]) -> None:
        """Write the status if it differs from what is there; a conflict is for the next pass, on a fresh read."""
        there = raw.get("status") or {}
        # The server may store a status in other words (defaults); what it made of the last one is not a difference.
        if status == there or memory.written == (status, there):
            return
        written = await self.kube.replace_status({**raw, "status": status})
        memory.written = (status, written.get("status") or {})
        memory.figures_due = self.monotonic() + FIGURES_SECONDS

    async def _tell(
        self,
        memory: _Memory,
        outcome: Outcome,
        observed: Observed,
        engines: Any,
        trainer: observe.TrainerView,
        tokens: dict[str, str],
    ) -> None:
        """Plans to agents and the directive to the trainer. Who does not answer is told in a later pass."""
        addressed = {pod.uid: pod for pod in engines}
        token = tokens.get("agent-token", "")
        self.fence()
        answers = await asyncio.gather(
            *(
                self.clients.put_plan(observe.agent_endpoint(addressed[uid], token), plan)
                for uid, plan in outcome.plans.items()
            )
        )
        for answer in answers:
            if isinstance(answer, CallFailure):
                logger.warning("%s: plan not taken: %s", observed.speculator.metadata.name, answer)
        if outcome.directive is not None and trainer.endpoint is not None:
            said = await self.clients.put_directive(trainer.endpoint, outcome.directive)
            if isinstance(said, CallFailure):
                logger.warning("%s: directive not taken: %s", observed.speculator.metadata.name, said)
            else:
                memory.directive = outcome.directive

    async def _versions(
        self, memory: _Memory, speculator: Speculator, outcome: Outcome, ledger: LedgerView, live: Live
    ) -> None:
        """SpeculatorVersions as they should be; those beyond the history limit go, once the ledger is known."""
        problems = await memory.applier.ensure(outcome.versions, live)
        for problem in problems:
            logger.warning("%s: %s", speculator.metadata.name, problem.message)
        if not ledger.read:
            return
        shown = {obj["metadata"]["name"] for obj in outcome.versions}
        digest = ",".join(sorted(shown))
        if digest == memory.versions_digest:
            return
        meta = speculator.metadata
        for obj in await self.kube.list("SpeculatorVersion", meta.namespace, selector(meta.name)):
            name = obj["metadata"]["name"]
            if name not in shown and owned_by(obj, meta.uid):
                await self.kube.delete("SpeculatorVersion", meta.namespace, name, obj["metadata"]["uid"])
        memory.versions_digest = digest

    async def _refuse(self, key: Key, raw: KubeObject, error: InvalidResource) -> Again:
        """The spec does not fit: say so, leave what runs alone."""
        meta = raw["metadata"]
        there = raw.get("status") or {}
        status = invalid_status(key.name, meta.get("generation", 0), there, error.problems, self.now())
        if status != there:
            await self.kube.replace_status({**raw, "status": status})
        return Again(self.settings.loops.idle_seconds)

    async def _delete(self, key: Key, raw: KubeObject) -> Again:
        if FINALIZER not in (raw["metadata"].get("finalizers") or []):
            self._forget(key)
            return Again(None)
        if not await remove_owned(self.kube, raw, self.now()):
            return Again(1.0)
        try:
            await drop_finalizer(self.kube, raw)
        except KubeError as error:
            if not error.not_found:
                raise
        self._forget(key)
        return Again(None)

    def _memory(self, key: Key, speculator: Speculator) -> _Memory:
        memory = self._memories.get(key)
        uid = speculator.metadata.uid
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = _Memory(uid, Applier(self.kube, uid))
        return memory

    def _forget(self, key: Key) -> None:
        self._memories.pop(key, None)
        self.metrics.forget(*key)

    def _show(self, key: Key, outcome: Outcome) -> None:
        facts = outcome.facts
        self.metrics.show(
            *key,
            stable=facts.stable,
            candidate=facts.candidate,
            mode=facts.mode,
            phase=facts.phase,
            speedup=facts.speedup,
            speedup_lower=facts.speedup_lower,
            pairs=facts.pairs,
            ready_replicas=facts.ready_replicas,
        )
