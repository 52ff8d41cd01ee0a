"""Reads the world for an `Observed`: policies, Secrets, agents, trainer. No part waits for another that is dead."""

import asyncio
import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from speculator_operator.api.base import InvalidResource
from speculator_operator.api.speculator import Speculator
from speculator_operator.api.sync_policy import SyncPolicy, SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicy, TrainingPolicySpec
from speculator_operator.kube.agents import AGENT_PORT, TRAINER_PORT, CallFailure, Endpoint, PodClients, http_url
from speculator_operator.kube.client import Kube, KubeObject
from speculator_operator.kube.ledger import S3Credentials
from speculator_operator.reconcile.observed import PolicyView, Problem
from speculator_operator.reconcile.podhealth import PodView
from speculator_runtime.contracts.plan import AgentState, Block
from speculator_runtime.contracts.trainer import TrainerStatus

Policy = TypeVar("Policy", TrainingPolicy, SyncPolicy)


async def read_training_policy(kube: Kube, speculator: Speculator) -> PolicyView[TrainingPolicySpec]:
    """The TrainingPolicy that is referred to, or the defaults."""
    ref = speculator.spec.training_policy_ref
    if ref is None:
        return PolicyView(TrainingPolicySpec())
    policy, problem = await _read_policy(kube, TrainingPolicy, speculator.metadata.namespace, ref.name)
    if policy is None:
        return PolicyView(None, ref.name, 0, problem)
    return PolicyView(policy.spec, ref.name, policy.metadata.generation)


async def read_sync_policy(kube: Kube, speculator: Speculator) -> PolicyView[SyncPolicySpec]:
    """The SyncPolicy that is referred to, or the defaults."""
    ref = speculator.spec.sync_policy_ref
    if ref is None:
        return PolicyView(SyncPolicySpec())
    policy, problem = await _read_policy(kube, SyncPolicy, speculator.metadata.namespace, ref.name)
    if policy is None:
        return PolicyView(None, ref.name, 0, problem)
    return PolicyView(policy.spec, ref.name, policy.metadata.generation)


async def _read_policy(
    kube: Kube, model: type[Policy], namespace: str, name: str
) -> tuple[Policy | None, Problem | None]:
    kind = model.__name__
    raw = await kube.get(kind, namespace, name)
    if raw is None:
        text = f"{kind} {namespace}/{name} does not exist; create it, or change spec.{_ref_field(kind)}.name"
        return None, Problem(f"{kind}Missing", text)
    try:
        return model.parse(raw), None
    except InvalidResource as error:
        return None, Problem(f"{kind}Invalid", f"{error}; correct it with kubectl edit {kind.lower()} {name}")


def _ref_field(kind: str) -> str:
    return kind[0].lower() + kind[1:] + "Ref"


@dataclass(frozen=True)
class CredentialsView:
    """S3 credentials of the Secret, or what is wrong with it. Neither: the operator's own identity is used."""

    credentials: S3Credentials | None = None
    problem: Problem | None = None


async def read_credentials(kube: Kube, speculator: Speculator) -> CredentialsView:
    """The access key from the Secret that the Speculator names."""
    ref = speculator.spec.storage.s3.credentials_secret_ref
    if ref is None:
        return CredentialsView()
    namespace = speculator.metadata.namespace
    secret = await kube.get("Secret", namespace, ref.name)
    if secret is None:
        text = (
            f"Secret {namespace}/{ref.name} does not exist; create it with the keys {ref.access_key_id} and "
            f"{ref.secret_access_key}, or change spec.storage.s3.credentialsSecretRef"
        )
        return CredentialsView(problem=Problem("CredentialsSecretMissing", text))
    values = secret_values(secret)
    missing = [key for key in (ref.access_key_id, ref.secret_access_key) if not values.get(key)]
    if missing:
        text = f"Secret {namespace}/{ref.name} has no {' and no '.join(missing)}; it has {sorted(values) or 'no keys'}"
        return CredentialsView(problem=Problem("CredentialsKeyMissing", text))
    return CredentialsView(S3Credentials(values[ref.access_key_id].strip(), values[ref.secret_access_key].strip()))


def secret_values(secret: KubeObject) -> dict[str, str]:
    """Decoded values of a Secret; values that are not text are left out."""
    values = {}
    for key, encoded in (secret.get("data") or {}).items():
        try:
            values[key] = base64.b64decode(encoded).decode()
        except UnicodeDecodeError:
            continue
    return values


@dataclass(frozen=True)
class AgentsView:
    """Agents that answered and those that did not, by pod uid."""

    states: Mapping[str, AgentState]
    failures: Mapping[str, str]


def agent_endpoint(pod: PodView, token: str) -> Endpoint:
    """The agent of an engine pod."""
    return Endpoint(http_url(pod.address, AGENT_PORT), token)


async def read_agents(clients: PodClients, pods: Iterable[PodView], token: str) -> AgentsView:
    """States of all agents that have an address, asked at once."""
    asked = [pod for pod in pods if pod.reachable and not pod.terminating]
    answers = await asyncio.gather(*(clients.agent_state(agent_endpoint(pod, token)) for pod in asked))
    states, failures = {}, {}
    for pod, answer in zip(asked, answers, strict=True):
        if isinstance(answer, CallFailure):
            failures[pod.uid] = str(answer)
        elif answer.pod_uid != pod.uid:
            # Addresses are reused: an answer of another pod must never be taken for this one's.
            failures[pod.uid] = f"{pod.address} answers for pod uid {answer.pod_uid}, expected {pod.uid}"
        else:
            states[pod.uid] = answer
    return AgentsView(states, failures)


def last_indices(evidence: Iterable[Block], generation: int) -> dict[str, int]:
    """Highest stored block index of a plan generation by pod uid."""
    last: dict[str, int] = {}
    for block in evidence:
        if block.generation == generation:
            last[block.pod_uid] = max(last.get(block.pod_uid, -1), block.index)
    return last


async def read_blocks(
    clients: PodClients,
    pods: Iterable[PodView],
    states: Mapping[str, AgentState],
    token: str,
    generation: int,
    stored: Mapping[str, int],
) -> list[Block]:
    """Blocks of a plan generation that are not stored yet, from all agents that follow it."""
    asked = [
        pod
        for pod in pods
        if pod.uid in states
        and states[pod.uid].plan_generation == generation
        and states[pod.uid].blocks_until > stored.get(pod.uid, -1)
    ]
    pages = await asyncio.gather(
        *(clients.blocks(agent_endpoint(pod, token), generation, stored.get(pod.uid, -1)) for pod in asked)
    )
    found: list[Block] = []
    for pod, page in zip(asked, pages, strict=True):
        if isinstance(page, CallFailure) or page.pod_uid != pod.uid or page.generation != generation:
            continue  # Asked again in the next pass: agents keep blocks until the plan changes.
        after = stored.get(pod.uid, -1)
        found += [b for b in page.blocks if b.index > after and (b.pod_uid, b.generation) == (pod.uid, generation)]
    return found


@dataclass(frozen=True)
class TrainerView:
    """The trainer's answer, or why there is none."""

    endpoint: Endpoint | None = None
    status: TrainerStatus | None = None
    failure: str = ""


async def read_trainer(clients: PodClients, pods: Iterable[PodView], token: str) -> TrainerView:
    """Status of the trainer; by pod address, so that no DNS and no Service is in between."""
    running = [pod for pod in pods if pod.reachable and not pod.terminating]
    if not running:
        return TrainerView(failure="the trainer pod has no address yet")
    endpoint = Endpoint(http_url(running[-1].address, TRAINER_PORT), token)
    answer = await clients.trainer_status(endpoint)
    if isinstance(answer, CallFailure):
        return TrainerView(endpoint, failure=str(answer))
    return TrainerView(endpoint, answer)
