"""From `kubectl apply` to a verdict: objects, plans, evidence in S3, promotion, rejection, restarts."""

import asyncio

import pytest

from speculator_runtime.contracts.ledger import Verdict
from speculator_runtime.contracts.plan import Arm
from speculator_runtime.storage import Ledger
from support.operator_harness import condition, until
from support.s3server import S3Server
from support.samples import make_manifest, write_version


@pytest.fixture
def ledger(world) -> Ledger:
    return world.ledger


def publish(ledger: Ledger, directory, content: bytes = b"weights"):
    number = ledger.claim_version("test")
    known = ledger.list_versions()
    parent = ledger.read_stored(known[-1].version) if known else None
    files = write_version(directory / str(number), content + str(number).encode())
    manifest = make_manifest(number, files, parent).model_copy(update={"training_policy_sha256": "a" * 64})
    return ledger.publish(number, directory / str(number), manifest).ref


async def test_a_version_that_is_faster_is_promoted(world, ledger, tmp_path) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    status = (await world.get())["status"]
    assert status["phase"] == "Learning"
    assert status["readyReplicas"] == 1

    ref = publish(ledger, tmp_path)
    await world.until("version 1 is promoted", lambda s: s.get("stable", {}).get("version") == ref.version)

    status = (await world.get())["status"]
    assert status["stable"] == {"version": 1, "sha256": ref.sha256}
    assert float(status["speedup"]["lower"]) > 1.0
    (record,) = ledger.read_verdicts(1)
    assert record.verdict == Verdict.PROMOTED
    assert record.blocks > 0
    version = await world.until_version(1, "Promoted")
    assert version["spec"]["sha256"] == ref.sha256
    assert version["status"]["againstTargetOnly"]["pairs"] > 0
    agent = world.kubelet.agents["chat-engine-0"]
    await until("the replica rests on the stable drafter", lambda: settled(agent.plan.resting_arm == Arm.STABLE))
    assert agent.plan.stable == ref


async def test_the_evidence_in_s3_is_what_the_verdict_rests_on(world, ledger, tmp_path) -> None:
    await world.apply_speculator()
    world.operator.start()
    publish(ledger, tmp_path)
    await world.until("promoted", lambda s: s.get("stable"))
    (record,) = ledger.read_verdicts(1)
    stored = {(b.pod_uid, b.generation, b.index) for b in ledger.read_evidence(1)}
    assert len(stored) >= record.blocks
    assert record.evidence_sha256


async def test_a_version_that_is_slower_is_rejected_and_stays_so(world, ledger, tmp_path) -> None:
    world.kubelet.configure = lambda agent: agent.speeds.update({Arm.CANDIDATE: 80.0})
    await world.apply_speculator()
    world.operator.start()
    publish(ledger, tmp_path)
    await world.until("rejected", lambda s: s.get("rejectedDigests"))
    status = (await world.get())["status"]
    assert status.get("stable") is None
    assert status["rejectedDigests"][0]["version"] == 1
    await world.until_version(1, "Rejected")
    plans = len(world.kubelet.agents["chat-engine-0"].plans)
    await asyncio.sleep(2)
    assert len(world.kubelet.agents["chat-engine-0"].plans) == plans, "not tried again by itself"


async def test_kill_9_in_mid_canary_ends_with_the_same_verdict_and_nothing_counted_twice(
    world, ledger, tmp_path
) -> None:
    world.kubelet.configure = lambda agent: setattr(agent, "block_pause", 0.15)
    await world.apply_speculator()
    world.operator.start()
    publish(ledger, tmp_path)
    for wanted in (4, 10, 16):
        await until("evidence grows", lambda w=wanted: settled(len(ledger.read_evidence(1)) >= w), show=world.get)
        world.operator.kill()
        await asyncio.sleep(0.3)
        world.operator.start()
    await world.until("promoted", lambda s: s.get("stable"), seconds=60)
    agent = world.kubelet.agents["chat-engine-0"]
    stored = ledger.read_evidence(1)
    keys = [(b.pod_uid, b.generation, b.index) for b in stored]
    assert len(keys) == len(set(keys))
    canary = [plan.generation for plan in agent.plans if plan.candidate]
    assert len(canary) == 1, "a restart did not make a new plan"
    indices = sorted(b.index for b in stored if b.generation == canary[0])
    assert indices == list(range(len(indices))), "no block was lost by the restarts"
    assert [r.verdict for r in ledger.read_verdicts(1)] == [Verdict.PROMOTED]
    reasons = [event["reason"] for event in await world.events()]
    assert reasons.count("CanaryStarted") == 1, "a restart does not tell a transition again"


async def test_a_refused_version_is_rejected_with_the_engines_reason(world, ledger, tmp_path) -> None:
    world.kubelet.configure = lambda agent: agent.refuse.update({1: ("TensorShapes", "fc.weight is [8, 24]")})
    await world.apply_speculator()
    world.operator.start()
    publish(ledger, tmp_path)
    await world.until("rejected", lambda s: s.get("rejectedDigests"))
    found = condition(await world.get(), "DrafterCompatible")
    assert found["status"] == "False"
    assert "fc.weight" in found["message"]
    assert condition(await world.get(), "Ready")["status"] == "True", "serving does not depend on it"


async def test_an_outage_of_s3_in_mid_canary_delays_the_verdict_and_loses_nothing(
    own_s3_world, own_s3: S3Server, tmp_path
) -> None:
    world, ledger = own_s3_world, own_s3_world.ledger
    world.kubelet.configure = lambda agent: setattr(agent, "block_pause", 0.1)
    await world.apply_speculator()
    world.operator.start()
    publish(ledger, tmp_path)
    await until("evidence grows", lambda: settled(len(ledger.read_evidence(1)) >= 4), show=world.get)
    own_s3.stop()
    await world.until_condition("Degraded", "True")
    assert condition(await world.get(), "Degraded")["reason"] == "StoreUnreachable"
    assert condition(await world.get(), "Ready")["status"] == "True"
    own_s3.start()
    await world.until("promoted", lambda s: s.get("stable"), seconds=60)
    await world.until_condition("Degraded", "False")


async def test_each_transition_is_one_event(world, ledger, tmp_path) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    publish(ledger, tmp_path)
    await world.until("promoted", lambda s: s.get("stable"))

    async def told():
        (record,) = ledger.read_verdicts(1)
        return [event for event in await world.events() if record.message[:100] in event["note"]]

    await until("the promotion is an event", told, seconds=10)
    await asyncio.sleep(2)
    events = await world.events()
    assert len(await told()) == 1
    assert [event["reason"] for event in events].count("Serving") == 1
    assert {event["regarding"]["name"] for event in events} == {"chat"}


async def settled(value):
    return value
