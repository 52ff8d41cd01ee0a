"""Leadership: one holder at a time, and a fence that closes before anybody else can take over."""

import asyncio
import copy
from dataclasses import dataclass, field

import pytest

from speculator_operator.kube.client import KubeError, NotLeaderError
from speculator_operator.kube.lease import Leadership, LeaseSettings


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class LeaseServer:
    """Optimistic concurrency as the API server has it: a write needs the resourceVersion that is there."""

    lease: dict | None = None
    version: int = 0
    down: bool = False
    requests: list[str] = field(default_factory=list)

    async def __call__(self, method, path, query, body, content_type, what, seconds=15.0):
        self.requests.append(method)
        await asyncio.sleep(0)
        if self.down:
            raise KubeError(what, 0, "Unreachable", "connection refused")
        if method == "GET":
            if self.lease is None:
                raise KubeError(what, 404, "NotFound", "not found")
            return copy.deepcopy(self.lease)
        if method == "POST" and self.lease is not None:
            raise KubeError(what, 409, "AlreadyExists", "exists")
        if method == "PUT" and body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise KubeError(what, 409, "Conflict", "changed")
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)


def candidate(server: LeaseServer, identity: str, clock: Clock) -> Leadership:
    return Leadership(server, LeaseSettings("ns", "lease", identity, duration=15, margin=3), monotonic=clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


async def test_the_first_to_come_leads_and_the_second_does_not(server: LeaseServer, clock: Clock) -> None:
    first, second = candidate(server, "a", clock), candidate(server, "b", clock)
    await first.step()
    await second.step()
    assert first.is_leader
    assert not second.is_leader
    with pytest.raises(NotLeaderError):
        second.check()


async def test_the_fence_says_how_long_a_write_may_be_in_flight(server: LeaseServer, clock: Clock) -> None:
    leader = candidate(server, "a", clock)
    await leader.step()
    assert leader.check() == pytest.approx(15)
    clock.now += 10
    assert leader.check() == pytest.approx(5)


async def test_the_fence_closes_before_the_lease_can_be_taken(server: LeaseServer, clock: Clock) -> None:
    leader, other = candidate(server, "a", clock), candidate(server, "b", clock)
    await leader.step()
    await other.step()
    clock.now += 12.1
    with pytest.raises(NotLeaderError):
        leader.check()
    await other.step()
    assert not other.is_leader, "the lease has 15 seconds, only 12.1 have passed"
    clock.now += 3
    await other.step()
    assert other.is_leader
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_renewal_keeps_the_lease_against_a_candidate_that_watches(server: LeaseServer, clock: Clock) -> None:
    leader, other = candidate(server, "a", clock), candidate(server, "b", clock)
    for _ in range(10):
        await leader.step()
        await other.step()
        clock.now += 10
    assert not other.is_leader
    assert server.lease["spec"]["holderIdentity"] == "a"


async def test_a_leader_cut_off_from_the_api_server_stops_by_itself(server: LeaseServer, clock: Clock) -> None:
    leader = candidate(server, "a", clock)
    await leader.step()
    server.down = True
    clock.now += 5
    await leader.step()
    assert leader.is_leader, "what is held runs out, it is not thrown away"
    clock.now += 7.5
    await leader.step()
    assert not leader.is_leader


async def test_a_former_leader_that_wakes_up_finds_the_new_one(server: LeaseServer, clock: Clock) -> None:
    old, new = candidate(server, "a", clock), candidate(server, "b", clock)
    await old.step()
    await new.step()
    clock.now += 16
    await new.step()
    await old.step()
    assert new.is_leader
    assert not old.is_leader


async def test_of_two_that_find_an_expired_lease_at_once_one_leads(server: LeaseServer, clock: Clock) -> None:
    old, one, two = (candidate(server, name, clock) for name in "abc")
    await old.step()
    await asyncio.gather(one.step(), two.step())
    clock.now += 16
    await asyncio.gather(one.step(), two.step())
    assert [one.is_leader, two.is_leader].count(True) == 1


async def test_giving_the_lease_back_lets_another_take_it_at_once(server: LeaseServer, clock: Clock) -> None:
    leader, other = candidate(server, "a", clock), candidate(server, "b", clock)
    await leader.step()
    await other.step()
    await leader._release()
    assert not leader.is_leader
    await other.step()
    assert other.is_leader
