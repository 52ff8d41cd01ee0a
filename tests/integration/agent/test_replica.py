"""The real agent beside the real engine, with a real store and real traffic."""

import time
from itertools import pairwise

import httpx
import pytest

from speculator_runtime.agent.schedule import arm_order
from speculator_runtime.contracts.control import DecodeMode
from speculator_runtime.contracts.plan import Arm, LoadStatus, Plan, Switchback
from speculator_runtime.traces.keys import trainer_keys
from speculator_runtime.traces.receiver import TraceReceiver
from support.replica import AGENT_TOKEN, Replica, Traffic, eventually
from support.s3server import use_credentials

pytestmark = pytest.mark.slow
T, S, C = Arm.TARGET_ONLY, Arm.STABLE, Arm.CANDIDATE


@pytest.fixture(scope="module")
def replica(s3_server, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        use_credentials(patch)
        replica = Replica(tmp_path_factory.mktemp("replica"), s3_server.settings(s3_server.new_bucket(), "ns/name"))
        try:
            replica.start_agent()
            replica.start_engine()
            yield replica
        finally:
            replica.stop()


@pytest.fixture(scope="module")
def versions(replica):
    """Two good versions."""
    return replica.publish(seed=1), replica.publish(seed=2)


@pytest.fixture
def traffic(replica):
    traffic = Traffic(replica.engine_port)
    yield traffic
    traffic.close()


@pytest.fixture(scope="module")
def next_plan(versions):
    """Plans with growing generations; by default blocks of 0.8 s over all three arms."""
    generation = 0

    def make(arms=(T, S, C), resting_arm=S, candidate=versions[1], **schedule) -> Plan:
        nonlocal generation
        generation += 1
        fields = {"block_seconds": 0.8, "washout_seconds": 0.2, "seed": 11} | schedule
        return Plan(
            generation=generation,
            stable=versions[0],
            candidate=candidate,
            resting_arm=resting_arm,
            switchback=Switchback(arms=arms, **fields) if arms else None,
        )

    return make


def adopt(replica, plan):
    response = replica.put_plan(plan)
    assert response.status_code == 200, response.text
    return plan


def wait_for_blocks(replica, plan, count, seconds=60):
    eventually(lambda: len(replica.blocks(plan.generation).blocks) >= count, seconds, f"block {count}")
    return replica.blocks(plan.generation).blocks


def test_before_any_plan_the_agent_says_what_the_engine_runs(replica):
    eventually(lambda: replica.state().engine_healthy)
    state = replica.state()

    assert (state.pod, state.pod_uid, state.plan_generation) == ("engine-0", "uid-0", 0)
    assert (state.mode, state.arm, state.loaded) == (DecodeMode.TARGET_ONLY, T, None)
    assert state.engine.startswith("reference/")
    assert len(state.target_digest) == 64


def test_a_plan_runs_its_arms_on_the_live_engine_without_a_failed_request(replica, versions, next_plan, traffic):
    plan = adopt(replica, next_plan())

    blocks = wait_for_blocks(replica, plan, 9)

    assert [b.index for b in blocks] == list(range(len(blocks)))
    expected = [arm for n in range(3) for arm in arm_order(11, n, (T, S, C))]
    assert [b.arm for b in blocks[:9]] == expected
    for b in blocks:
        assert (b.valid, b.invalid_reason) == (True, "")
        assert b.version == {T: None, S: versions[0], C: versions[1]}[b.arm]
        assert b.seconds == pytest.approx(0.6, abs=0.35)
        assert sum(c.tokens for c in b.buckets.values()) > 0
        if b.arm is T:
            assert all(set(c.accept_histogram) <= {1} for c in b.buckets.values())
    states = {v.ref.version: v.status for v in replica.state().versions}
    assert states == {1: LoadStatus.LOADED, 2: LoadStatus.LOADED}
    traffic.close()
    assert traffic.failures == []
    assert traffic.finished > 5
    # Lossless, whichever arm answered: one text a prompt.
    assert all(len(texts) == 1 for texts in traffic.answers.values())


def test_the_live_digest_proves_which_version_runs(replica, versions, next_plan):
    digests = {}
    for arm in (S, C, S):
        adopt(replica, next_plan(arms=None, resting_arm=arm))
        want = {S: versions[0], C: versions[1]}[arm]
        eventually(lambda want=want: replica.state().loaded == want)
        digests.setdefault(arm, set()).add(replica.state().live_digest)

    assert len(digests[S]) == len(digests[C]) == 1
    assert digests[S] != digests[C]


def test_a_plan_is_taken_once_and_an_older_or_a_contradicting_one_is_refused(replica, next_plan):
    older, plan = next_plan(arms=None), adopt(replica, next_plan(arms=None))

    assert replica.put_plan(plan).status_code == 200
    refused = replica.put_plan(older)
    assert refused.status_code == 409
    assert "is older than" in refused.text
    changed = replica.put_plan(plan.model_copy(update={"resting_arm": T}))
    assert changed.status_code == 409
    assert "a change needs a higher generation" in changed.text
    assert replica.client.put("/v1/plan", json={"generation": 0}).status_code == 422


def test_without_the_token_nothing_is_told_and_a_rotated_one_holds_at_once(replica):
    url = f"http://127.0.0.1:{replica.agent_port}"
    for path in ("/v1/state", "/v1/blocks?generation=1"):
        assert httpx.get(url + path, trust_env=False).status_code == 401
        wrong = httpx.get(url + path, headers={"Authorization": "Bearer guess"}, trust_env=False)
        assert wrong.status_code == 401
    for path in ("/healthz", "/readyz", "/metrics"):
        assert httpx.get(url + path, trust_env=False).status_code == 200

    token = replica.secrets / "agent-token"
    token.write_text("new-secret\n")
    try:
        assert replica.client.get("/v1/state").status_code == 401
        fresh = httpx.get(url + "/v1/state", headers={"Authorization": "Bearer new-secret"}, trust_env=False)
        assert fresh.status_code == 200
    finally:
        token.write_text(AGENT_TOKEN)


def test_a_drafter_that_is_not_finite_is_refused_by_name_and_serving_goes_on(replica, next_plan, traffic):
    bad = replica.publish(seed=3, spoil=float("nan"))
    plan = adopt(replica, next_plan(candidate=bad))

    eventually(lambda: any(v.status is LoadStatus.REFUSED for v in replica.state().versions))

    state = replica.state()
    (refused,) = [v for v in state.versions if v.ref == bad]
    assert refused.reason == "NotFinite"
    assert "NotFinite" in state.last_error
    # The schedule cannot go on without its candidate: the replica rests on the stable version.
    eventually(lambda: replica.state().arm is S)
    count = len(replica.blocks(plan.generation).blocks)
    time.sleep(1.5)
    assert len(replica.blocks(plan.generation).blocks) == count
    assert [b.valid for b in replica.blocks(plan.generation).blocks if b.arm is C] == [False]
    traffic.close()
    assert traffic.failures == []


def test_an_agent_killed_in_mid_block_loses_that_block_only_and_the_engine_serves_on(replica, next_plan, traffic):
    plan = adopt(replica, next_plan(block_seconds=1.2))
    before = wait_for_blocks(replica, plan, 2)
    time.sleep(0.5)

    replica.kill("agent")
    served = traffic.finished
    eventually(lambda: traffic.finished > served, what="serving without an agent")
    replica.start_agent()

    after = wait_for_blocks(replica, plan, len(before) + 2)
    assert after[: len(before)] == before
    assert [b.index for b in after] == list(range(len(after)))
    assert all(b.valid for b in after)
    assert all(b.started + b.seconds <= a.started + 0.05 for b, a in pairwise(after))
    assert replica.state().plan_generation == plan.generation
    traffic.close()
    assert traffic.failures == []


def test_an_engine_that_was_killed_gets_its_version_and_mode_back(replica, versions, next_plan):
    plan = adopt(replica, next_plan(arms=(S, C), resting_arm=S))
    wait_for_blocks(replica, plan, 1)
    # Into the next block, past its swap: a kill between blocks spoils none.
    time.sleep(plan.switchback.block_seconds / 2)

    replica.kill("engine")
    eventually(lambda: not replica.state().engine_healthy)
    assert "no answer" in replica.state().last_error
    during = len(replica.blocks(plan.generation).blocks)
    time.sleep(2)
    assert len(replica.blocks(plan.generation).blocks) == during
    replica.start_engine()

    blocks = wait_for_blocks(replica, plan, during + 2)
    assert sum(not b.valid for b in blocks) == 1
    assert replica.state().engine_healthy
    assert replica.state().mode is DecodeMode.SPECULATIVE


def test_traces_pass_through_the_agent_to_the_trainer(replica, traffic):
    receiver = TraceReceiver(f"tcp://127.0.0.1:{replica.trainer_port}", lambda: trainer_keys(replica.secrets))
    try:
        trace = receiver.receive(60)
        assert trace is not None
        assert trace.header.pod == "engine-0"
        assert trace.header.total_length == len(trace.tensors["tokens"])
        assert receiver.counters.refused_total == 0
    finally:
        receiver.close()
    eventually(lambda: replica.state().traces_forwarded > 0)


def test_metrics_tell_blocks_loads_and_traces(replica):
    text = replica.client.get("/metrics").text

    assert 'speculator_agent_blocks_total{arm="Candidate",valid="true"}' in text
    assert "speculator_agent_drafter_load_seconds_count" in text
    assert 'speculator_agent_traces{outcome="received"}' in text
