"""Two replicas: one reconciles, the other is ready, and takes over."""

import asyncio
import signal

from support.operator_harness import Operator, until


def second(world) -> Operator:
    return Operator(world.operator.kubeconfig, world.namespace, world.operator.log.with_name("second.log"))


async def leader_of(operators):
    leading = [operator for operator in operators if operator.get("/readyz") == (200, "leader")]
    return leading[0] if len(leading) == 1 else None


async def test_one_leads_and_the_other_is_ready_too(world) -> None:
    other = second(world)
    try:
        world.operator.start()
        other.start()
        await until("one leads", lambda: leader_of([world.operator, other]))
        await asyncio.sleep(1)
        pages = sorted(operator.get("/readyz")[1] for operator in (world.operator, other))
        assert pages == ["leader", "standby"]
        assert [operator.get("/healthz")[0] for operator in (world.operator, other)] == [200, 200]
        assert sum(operator.metric("speculator_is_leader") for operator in (world.operator, other)) == 1
    finally:
        other.stop()


async def test_when_the_leader_is_killed_the_other_goes_on_within_the_lease(world) -> None:
    other = second(world)
    try:
        world.operator.start()
        await until("it leads", lambda: leader_of([world.operator]))
        other.start()
        await world.apply_speculator()
        await world.until_condition("Ready", "True")
        world.operator.kill()
        await world.kube.delete("Service", world.namespace, "chat")
        await until("the Service is back", lambda: world.kube.get("Service", world.namespace, "chat"), seconds=20)
        assert other.get("/readyz") == (200, "leader")
    finally:
        other.stop()


async def test_a_leader_that_is_stopped_hands_over_at_once(world) -> None:
    other = second(world)
    try:
        world.operator.start()
        await until("it leads", lambda: leader_of([world.operator]))
        other.start()
        await until("it waits", lambda: answers(other))
        assert world.operator.stop() == 0
        lease = await world.kube.get("Lease", world.namespace, "speculator-operator")
        assert lease["spec"]["holderIdentity"] != "" or lease["spec"]["leaseDurationSeconds"] == 1
        await until("the other leads", lambda: leader_of([other]), seconds=3)
    finally:
        other.stop()


async def test_a_leader_that_was_frozen_finds_itself_replaced_and_writes_nothing(world) -> None:
    other = second(world)
    try:
        world.operator.start()
        await until("it leads", lambda: leader_of([world.operator]))
        other.start()
        await world.apply_speculator()
        await world.until_condition("Ready", "True")
        world.operator.process.send_signal(signal.SIGSTOP)
        await until("the other leads", lambda: leader_of([other]), seconds=15)
        await asyncio.sleep(1)
        world.operator.process.send_signal(signal.SIGCONT)
        await until("the first waits", lambda: stands_by(world.operator), seconds=5)
        written = world.operator.requests("POST", "PUT", "PATCH", "DELETE")
        await world.kube.delete("Service", world.namespace, "chat")
        await until("the Service is back", lambda: world.kube.get("Service", world.namespace, "chat"), seconds=15)
        assert world.operator.requests("POST", "PUT", "PATCH", "DELETE") == written
    finally:
        other.stop()


async def stands_by(operator: Operator) -> bool:
    return operator.get("/readyz") == (200, "standby")


async def answers(operator: Operator) -> bool:
    return operator.get("/readyz")[0] == 200
