"""Bad input: each shows as a condition with a message that says what to do, and mending it is enough."""

import pytest

from support.operator_harness import POLICY, condition, speculator, sync_policy, until


async def test_a_missing_bucket(world) -> None:
    obj = speculator(world.namespace, "no-such-bucket", world.s3.endpoint)
    await world.apply_speculator(obj)
    world.operator.start()
    found = await world.until_condition("Ready", "False", reason="BucketNotFound")
    assert "no-such-bucket" in found["message"]
    assert "create it" in found["message"]
    world.s3.client().create_bucket(Bucket="no-such-bucket")
    await world.until_condition("Ready", "True")


async def test_wrong_credentials(world) -> None:
    await world.kube.merge("Secret", world.namespace, "s3", {"stringData": {"secretAccessKey": "wrong"}})
    await world.apply_speculator()
    world.operator.start()
    found = await world.until_condition("Ready", "False", reason="CredentialsRefused")
    assert "check the Secret" in found["message"]
    await world.kube.merge("Secret", world.namespace, "s3", {"stringData": {"secretAccessKey": "local-secret"}})
    await world.until_condition("Ready", "True")


async def test_a_missing_credentials_secret(world) -> None:
    await world.kube.delete("Secret", world.namespace, "s3")
    await world.apply_speculator()
    world.operator.start()
    found = await world.until_condition("Ready", "False", reason="CredentialsSecretMissing")
    assert f"{world.namespace}/s3" in found["message"]
    assert "accessKeyId" in found["message"]
    await world.create_credentials()
    await world.until_condition("Ready", "True")


async def test_unreachable_s3_degrades_but_serving_is_ready(world) -> None:
    obj = speculator(world.namespace, "bucket", "http://127.0.0.1:9")
    await world.apply_speculator(obj)
    world.operator.start()
    found = await world.until_condition("Degraded", "True", reason="StoreUnreachable")
    assert "127.0.0.1:9" in found["message"]
    await world.until_condition("Ready", "True")


async def test_a_missing_policy_parks_and_names_it_and_comes_back_with_it(world) -> None:
    await world.kube.delete("SyncPolicy", world.namespace, POLICY)
    await world.apply_speculator()
    world.operator.start()
    found = await world.until_condition("Ready", "False", reason="SyncPolicyMissing")
    assert f"{world.namespace}/{POLICY}" in found["message"]
    await world.kube.create(sync_policy(world.namespace))
    await world.until_condition("Ready", "True", seconds=15)


async def test_a_pod_that_cannot_be_scheduled_gives_the_schedulers_reason(world) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    reason = "0/1 nodes are available: 1 Insufficient cpu."
    await world.kubelet.set_status(
        "chat-engine-0",
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}],
    )
    found = await world.until_condition("Ready", "False", reason="Unschedulable")
    assert "Insufficient cpu" in found["message"]


async def test_an_unknown_model_is_told_with_the_fetchers_last_words(world) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    terminated = {"exitCode": 2, "reason": "Error", "message": "hf://tests/tiny: no such model on the Hub"}
    status = {
        "name": "fetch-target",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 2,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": terminated},
    }
    await world.kubelet.set_status(
        "chat-engine-0", initContainerStatuses=[status], conditions=[{"type": "Ready", "status": "False"}]
    )
    found = await world.until_condition("Ready", "False", reason="TargetFetchFailed")
    assert "no such model" in found["message"]
    assert (await world.get())["status"]["phase"] == "Degraded"


async def test_a_dead_agent_is_named_and_does_not_hold_up_the_others(world) -> None:
    await world.apply_speculator(replicas=2)
    world.operator.start()
    await world.until_condition("Ready", "True")
    await world.kubelet.agents["chat-engine-1"].stop()
    found = await world.until_condition("Degraded", "True", reason="AgentUnreachable")
    assert "chat-engine-1" in found["message"]
    before = world.kubelet.agents["chat-engine-0"].state_requests

    async def asked():
        return world.kubelet.agents["chat-engine-0"].state_requests > before

    await until("the other agent is still asked", asked)
    del world.kubelet.agents["chat-engine-1"]


@pytest.mark.parametrize(("paused", "phase"), [(True, "Paused")])
async def test_pausing_is_shown_and_told_to_the_trainer(world, paused, phase) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    await world.kube.merge("Speculator", world.namespace, "chat", {"spec": {"paused": paused}})
    await world.until_condition("Paused", "True")
    assert (await world.get())["status"]["phase"] == phase
    trainer = world.kubelet.trainers["chat-trainer-0"]

    async def told():
        return trainer.directives and trainer.directives[-1].paused

    await until("the trainer was told", told)
    assert condition(await world.get(), "Ready")["status"] == "True"
