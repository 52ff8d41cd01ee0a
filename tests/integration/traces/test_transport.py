"""Traces over real sockets: engine -> agent -> trainer."""

import threading
import time
from pathlib import Path

import pytest
import zmq

from speculator_runtime.traces.codec import encode
from speculator_runtime.traces.errors import TraceKeyError
from speculator_runtime.traces.forwarder import ByteQueue, ForwardPolicy, TraceForwarder
from speculator_runtime.traces.keys import agent_keys, trainer_keys, write_key_files
from speculator_runtime.traces.receiver import TraceReceiver
from speculator_runtime.traces.sender import TraceSender
from support.s3server import free_port
from support.trace_samples import make_trace


def eventually(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    write_key_files(folder)
    return folder


@pytest.fixture
def line(tmp_path: Path, secrets: Path):
    """The three ends; each may be closed and made again by the test."""

    class Line:
        ipc = f"ipc://{tmp_path}/run/traces"
        tcp = f"tcp://127.0.0.1:{free_port()}"

        def __init__(self) -> None:
            self._open = []

        def sender(self, **options) -> TraceSender:
            return self._keep(TraceSender(self.ipc, **options))

        def forwarder(self, policy=None, queue_bytes=1 << 20, folder=secrets, trainer=True) -> TraceForwarder:
            endpoint = self.tcp if trainer else None
            made = TraceForwarder(
                self.ipc, endpoint, lambda: agent_keys(folder), policy or ForwardPolicy(), queue_bytes
            )
            made.start()
            return self._keep(made)

        def receiver(self, folder=secrets, **options) -> TraceReceiver:
            return self._keep(TraceReceiver(self.tcp, lambda: trainer_keys(folder), **options))

        def _keep(self, end):
            self._open.append(end)
            return end

        def close(self) -> None:
            for end in reversed(self._open):
                end.close()

    line = Line()
    yield line
    line.close()


def receive(receiver, count, seconds=15.0):
    end = time.monotonic() + seconds
    found = []
    while len(found) < count and time.monotonic() < end:
        trace = receiver.receive(0.2)
        if trace is not None:
            found.append(trace.header.request_id)
    return found


def test_traces_reach_the_trainer_in_order_with_the_pods_name(line):
    receiver, forwarder, sender = line.receiver(), line.forwarder(ForwardPolicy(pod="engine-0")), line.sender()

    for n in range(20):
        sender.send(make_trace(f"r-{n}"))
    first = receiver.receive(10)

    assert first is not None
    assert first.header.pod == "engine-0"
    assert receive(receiver, 19) == [f"r-{n}" for n in range(1, 20)]
    assert (sender.counters.captured, sender.counters.dropped) == (20, 0)
    assert (forwarder.counters.received, forwarder.counters.forwarded, forwarder.counters.dropped) == (20, 20, 0)


def test_sending_never_blocks_and_without_an_agent_the_oldest_go_and_are_counted(line):
    sender = line.sender(queue=5)
    began = time.monotonic()
    for n in range(500):
        sender.send(make_trace(f"r-{n}"))
    took = time.monotonic() - began
    assert took < 0.5
    assert (sender.counters.captured, sender.counters.dropped) == (500, 495)

    line.forwarder()
    receiver = line.receiver()

    assert receive(receiver, 5) == [f"r-{n}" for n in range(495, 500)]


def test_an_agent_that_restarts_costs_no_trace_that_still_waits(line):
    receiver, first, sender = line.receiver(), line.forwarder(), line.sender()
    sender.send(make_trace("before"))
    assert receive(receiver, 1) == ["before"]
    first.close()

    time.sleep(0.3)
    for n in range(3):
        sender.send(make_trace(f"while-away-{n}"))
    line.forwarder()

    assert receive(receiver, 3) == [f"while-away-{n}" for n in range(3)]


def test_a_trainer_that_is_away_costs_the_oldest_beyond_the_byte_bound(line):
    size = len(encode(make_trace("r-00")))
    forwarder, sender = line.forwarder(queue_bytes=10 * size + size // 2), line.sender(queue=100)
    for n in range(30):
        sender.send(make_trace(f"r-{n:02d}"))
    eventually(lambda: forwarder.counters.received == 30)

    assert forwarder.counters.dropped == 20
    assert forwarder.counters.waiting_bytes <= 10 * size + size // 2
    assert receive(line.receiver(), 10) == [f"r-{n:02d}" for n in range(20, 30)]


def test_a_trainer_that_restarts_gets_what_comes_after_and_every_trace_is_accounted_for(line):
    receiver, forwarder, sender = line.receiver(), line.forwarder(), line.sender()
    sender.send(make_trace("r-0"))
    assert receive(receiver, 1) == ["r-0"]
    receiver.close()
    time.sleep(0.3)
    for n in range(1, 11):
        sender.send(make_trace(f"r-{n}"))
    eventually(lambda: forwarder.counters.received == 11)

    again = line.receiver()

    assert receive(again, 10) == [f"r-{n}" for n in range(1, 11)]
    counters = forwarder.counters
    assert counters.received == counters.forwarded + counters.dropped + counters.waiting_traces


def test_a_gap_in_a_forwarders_numbers_is_counted_as_lost(line):
    receiver, forwarder, sender = line.receiver(), line.forwarder(), line.sender()
    sender.send(make_trace("r-0"))
    assert receive(receiver, 1) == ["r-0"]

    forwarder._sequence += 3
    sender.send(make_trace("r-1"))

    assert receive(receiver, 1) == ["r-1"]
    assert receiver.counters.lost_in_transit == 3


def test_the_policy_keeps_back_what_opted_out_and_what_is_not_sampled(line):
    receiver = line.receiver()
    forwarder, sender = line.forwarder(ForwardPolicy(share=0.5)), line.sender(queue=100)
    for n in range(40):
        sender.send(make_trace(f"r-{n}", opt_out=True if n % 4 == 0 else None))
    eventually(lambda: forwarder.counters.received == 40)
    counters = forwarder.counters

    assert counters.opted_out == 10
    assert 5 < counters.not_sampled < 25
    arrived = receive(receiver, 30 - counters.not_sampled)
    assert len(arrived) == 30 - counters.not_sampled
    assert all(int(name[2:]) % 4 for name in arrived)


def test_where_opting_out_is_the_default_only_an_explicit_yes_is_forwarded(line):
    receiver = line.receiver()
    forwarder, sender = line.forwarder(ForwardPolicy(opt_out_default=True)), line.sender()
    sender.send(make_trace("silent"))
    sender.send(make_trace("yes", opt_out=False))
    eventually(lambda: forwarder.counters.received == 2)

    assert receive(receiver, 1) == ["yes"]
    assert forwarder.counters.opted_out == 1


def test_without_a_trainer_traces_are_read_and_counted_as_dropped(line):
    forwarder, sender = line.forwarder(trainer=False), line.sender()
    sender.send(make_trace())

    eventually(lambda: forwarder.counters.dropped == 1)


def test_what_is_not_a_trace_is_counted_and_the_next_one_still_comes(line, secrets):
    receiver = line.receiver()
    keys = agent_keys(secrets)
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.curve_publickey, push.curve_secretkey, push.curve_serverkey = keys.public, keys.secret, keys.peer
    push.connect(line.tcp)
    for message in (b"", b"noise", encode(make_trace("good"))):
        push.send(message)

    assert receive(receiver, 1) == ["good"]
    assert receiver.counters.refused == {"NotATrace": 2}
    context.destroy(linger=0)


def test_a_client_with_an_unknown_key_is_refused_and_counted(line, secrets, tmp_path):
    receiver = line.receiver()
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    write_key_files(stranger)
    (stranger / "curve-trainer-public").write_bytes((secrets / "curve-trainer-public").read_bytes())
    line.forwarder(folder=stranger)
    line.sender().send(make_trace())

    assert receive(receiver, 1, seconds=2.0) == []
    assert receiver.counters.unknown_keys > 0
    assert receiver.counters.received == 0


def test_a_client_without_encryption_is_refused(line):
    receiver = line.receiver()
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.connect(line.tcp)
    push.send(encode(make_trace()))

    assert receive(receiver, 1, seconds=1.0) == []
    context.destroy(linger=0)


def test_rotated_keys_are_taken_up_without_a_restart(line, secrets, monkeypatch):
    for module in ("receiver", "forwarder"):
        monkeypatch.setattr(f"speculator_runtime.traces.{module}._KEY_CHECK_SECONDS", 0.2)
    receiver, sender = line.receiver(), line.sender()
    line.forwarder()
    sender.send(make_trace("old keys"))
    assert receive(receiver, 1) == ["old keys"]

    write_key_files(secrets)
    assert receive(receiver, 1, seconds=1.0) == []
    sender.send(make_trace("may be lost with the old connection"))
    stop = threading.Event()
    threading.Thread(target=lambda: [sender.send(make_trace("new keys")) or stop.wait(0.3) for _ in range(30)]).start()

    assert "new keys" in receive(receiver, 2, seconds=10)
    stop.set()


def test_a_missing_or_broken_key_file_is_named(tmp_path):
    with pytest.raises(TraceKeyError, match=r"curve-agent-public.*NAME-tokens"):
        agent_keys(tmp_path)
    write_key_files(tmp_path)
    (tmp_path / "curve-trainer-public").write_text("short")
    with pytest.raises(TraceKeyError, match="40 characters of Z85 are expected, got 5"):
        agent_keys(tmp_path)


def test_one_item_over_the_bound_is_dropped_itself():
    queue = ByteQueue(10)

    assert queue.push(b"x" * 4) == 0
    assert queue.push(b"y" * 11) == 2
    assert (len(queue), queue.nbytes) == (0, 0)
