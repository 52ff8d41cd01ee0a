"""Owned objects: made, healed, left alone while nothing changes, gone with the Speculator."""

import asyncio

from support.operator_harness import condition, speculator, until

OWNED = [
    ("StatefulSet", "chat-engine"),
    ("Service", "chat"),
    ("Service", "chat-engine"),
    ("Deployment", "chat-trainer"),
    ("Service", "chat-trainer"),
    ("Secret", "chat-tokens"),
    ("ConfigMap", "chat-config"),
    ("PodDisruptionBudget", "chat-engine"),
    ("ServiceAccount", "chat-engine"),
    ("ServiceAccount", "chat-trainer"),
]


async def test_every_object_is_made_with_the_speculator_as_its_owner(world) -> None:
    made = await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    for kind, name in OWNED:
        obj = await world.kube.get(kind, world.namespace, name)
        assert obj is not None, f"{kind} {name} is missing"
        (owner,) = obj["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Speculator", made["metadata"]["uid"], True)
        assert obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "speculator-operator"
    assert (await world.get())["metadata"]["finalizers"] == ["speculator.dev/cleanup"]


async def test_kubectl_waits_for_ready_and_shows_how_it_stands(world, apiserver) -> None:
    await world.apply_speculator()
    world.operator.start()
    waiting = ("wait", "--for=condition=Ready", "--timeout=30s", "speculator/chat", "-n", world.namespace)
    done = await asyncio.to_thread(apiserver.kubectl, *waiting)
    assert "condition met" in done.stdout
    shown = await asyncio.to_thread(apiserver.kubectl, "get", "speculators", "-n", world.namespace)
    assert "Learning" in shown.stdout
    assert "TargetOnly" in shown.stdout


async def test_a_deleted_service_comes_back(world) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    before = await world.kube.get("Service", world.namespace, "chat")
    await world.kube.delete("Service", world.namespace, "chat")

    async def back():
        service = await world.kube.get("Service", world.namespace, "chat")
        return service and service["metadata"]["uid"] != before["metadata"]["uid"]

    await until("the Service is back", back, seconds=10)


async def test_a_secret_that_is_deleted_comes_back(world) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    await world.kube.delete("Secret", world.namespace, "chat-tokens")
    await until("it is back", lambda: world.kube.get("Secret", world.namespace, "chat-tokens"), seconds=10)


async def test_a_change_by_hand_of_what_the_operator_owns_is_undone(world) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    service = await world.kube.get("Service", world.namespace, "chat")
    before = service["spec"]["ports"][0]["targetPort"]
    patch = {"spec": {"ports": [{"name": "http", "port": 8000, "targetPort": 9999}]}}
    await world.kube.merge("Service", world.namespace, "chat", patch)

    async def undone():
        service = await world.kube.get("Service", world.namespace, "chat")
        return service["spec"]["ports"][0]["targetPort"] == before

    await until("the target port is back", undone, seconds=10)


async def test_scaling_the_speculator_scales_the_engines(world) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    await world.kube.merge("Speculator", world.namespace, "chat", {"spec": {"serving": {"replicas": 3}}})
    await world.until("three replicas serve", lambda s: s.get("readyReplicas") == 3)
    await world.until_condition("Ready", "True")
    assert {agent.plan.generation for agent in world.kubelet.agents.values() if agent.plan} != set()


async def test_an_object_of_that_name_that_is_not_ours_is_left_alone_and_reported(world) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "namespace": world.namespace},
        "spec": {"ports": [{"port": 80}]},
    }
    await world.kube.create(foreign)
    await world.apply_speculator()
    world.operator.start()
    found = await world.until_condition("Degraded", "True")
    assert found["reason"] == "NameTaken"
    assert "Service" in found["message"]
    service = await world.kube.get("Service", world.namespace, "chat")
    assert [port["port"] for port in service["spec"]["ports"]] == [80]
    assert "ownerReferences" not in service["metadata"]


async def test_nothing_is_written_while_nothing_changes(world) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    await asyncio.sleep(3)
    resource_version = (await world.get())["metadata"]["resourceVersion"]
    written, read = world.operator.requests("POST", "PUT", "PATCH", "DELETE"), world.operator.requests("GET")
    await asyncio.sleep(10)
    later = world.operator.requests("POST", "PUT", "PATCH", "DELETE")
    assert later == written | {k: v for k, v in later.items() if "Speculator" in k and v - written.get(k, 0) <= 1}, (
        "at most one refresh of the figures in the status"
    )
    assert sum(world.operator.requests("GET").values()) - sum(read.values()) < 150
    assert int((await world.get())["metadata"]["resourceVersion"]) >= int(resource_version)


async def test_deletion_leaves_nothing_but_the_ledger(world, tmp_path) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    await world.kube.delete("Speculator", world.namespace, "chat")

    async def gone():
        return await world.get() is None

    await until("the Speculator is gone", gone, seconds=30, show=world.get)
    for kind in ("Pod", "Service", "Secret", "StatefulSet", "Deployment", "ConfigMap", "PodDisruptionBudget"):
        left = await world.kube.list(kind, world.namespace, "speculator.dev/speculator=chat")
        assert left == [], f"{kind} left behind"
    assert await world.kube.get("Secret", world.namespace, "s3") is not None, "the user's own Secret stays"


async def test_deletion_does_not_wait_for_s3_or_agents_that_are_dead(world) -> None:
    obj = speculator(world.namespace, "no-such-bucket", "http://127.0.0.1:9")
    await world.apply_speculator(obj)
    world.operator.start()
    await world.until_condition("Degraded", "True")
    for agent in world.kubelet.agents.values():
        await agent.stop()
    world.kubelet.agents.clear()
    await world.kube.delete("Speculator", world.namespace, "chat")

    async def gone():
        return await world.get() is None

    await until("the Speculator is gone", gone, seconds=20, show=world.get)


async def test_a_speculator_deleted_while_the_operator_was_away_goes_when_it_comes_back(world) -> None:
    await world.apply_speculator()
    world.operator.start()
    await world.until_condition("Ready", "True")
    world.operator.kill()
    await world.kube.delete("Speculator", world.namespace, "chat")
    assert await world.get() is not None, "the finalizer holds it"
    world.operator.start()

    async def gone():
        return await world.get() is None

    await until("gone", gone, seconds=30, show=world.get)
    assert condition(await world.get(), "Ready") == {}
