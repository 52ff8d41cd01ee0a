"""The local cluster comes up, goes down without a trace, and copes with whatever a killed run left behind."""

import json
import time

import pytest

from support.machine import COMMAND, RUNTIME, Machine, traces

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def pids(machine: Machine) -> dict[str, int]:
    return {
        name: json.loads(machine.run("cat", f"{RUNTIME}/{name}.pid").stdout)["pid"]
        for name in ("etcd", "kube-apiserver", "kubelet", "containerd", "kube-proxy", "versitygw")
    }


def seconds_of_up(machine: Machine) -> float:
    start = time.monotonic()
    machine.cluster("up")
    return time.monotonic() - start


def foreign_process_in_place_of(machine: Machine, program: str) -> int:
    """Kill the program and let its pid file point to a process of somebody else, as after a reboot; returns its pid."""
    sleep = machine.start("sh", "-c", "echo $$; exec sleep 300")
    assert sleep.stdout is not None
    pid = int(sleep.stdout.readline())
    record = json.loads(machine.run("cat", f"{RUNTIME}/{program}.pid").stdout)
    machine.run("kill", "-9", str(record["pid"]))
    machine.run("tee", f"{RUNTIME}/{program}.pid", text=json.dumps(record | {"pid": pid}))
    return pid


def test_up_on_a_running_cluster_changes_nothing_and_takes_no_time(running: Machine) -> None:
    before = pids(running)
    assert seconds_of_up(running) < 2
    assert pids(running) == before


def test_pods_reach_each_other_through_a_firewall_that_drops_forwarded_packets(running: Machine) -> None:
    address = running.kubectl("get", "pod", "one", "-o", "jsonpath={.status.podIP}")
    spaces = {}
    for pid in running.run("pgrep", "-x", "pause").stdout.split():
        spaces[running.run("nsenter", f"--target={pid}", "--net", "hostname", "-I").stdout.strip()] = pid
    other = next(pid for ip, pid in spaces.items() if ip != address)
    listen = f"import socket; s = socket.create_server(('{address}', 9)); print('ready', flush=True); s.accept()"
    listener = running.start("nsenter", f"--target={spaces[address]}", "--net", "python3", "-c", listen)
    assert listener.stdout is not None
    assert listener.stdout.readline() == "ready\n"
    connect = f"import socket; socket.create_connection(('{address}', 9), timeout=5)"
    running.run("nsenter", f"--target={other}", "--net", "python3", "-c", connect)
    assert listener.wait(timeout=5) == 0


def test_up_restarts_only_the_program_that_ended(running: Machine) -> None:
    before = pids(running)
    running.run("kill", "-9", str(before["kube-proxy"]))
    running.cluster("up")
    after = pids(running)
    assert {name for name in before if before[name] != after[name]} == {"kube-proxy"}


def test_pods_come_back_after_every_process_was_killed(running: Machine) -> None:
    started = running.kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.uid}")
    running.run("sh", "-c", "kill -9 -1", check=False)
    running.cluster("up")
    for _ in range(100):
        statuses = json.loads(running.kubectl("get", "pod", "one", "-o", "json"))["status"]["containerStatuses"]
        if statuses[0]["restartCount"] == 1 and statuses[0]["ready"]:
            break
        time.sleep(0.3)
    assert running.kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.uid}") == started
    assert statuses[0]["restartCount"] == 1
    assert statuses[0]["ready"]


def test_a_second_cluster_is_refused_while_one_runs(running: Machine) -> None:
    refused = running.run(str(COMMAND), "--name", f"{running.name}-other", "up", check=False)
    assert refused.returncode == 1
    assert str(running.folder()) in refused.stderr
    assert "down" in refused.stderr


def test_up_leaves_a_foreign_process_alone_to_which_a_pid_file_points(running: Machine) -> None:
    pid = foreign_process_in_place_of(running, "etcd")
    running.cluster("up")
    assert pids(running)["etcd"] != pid
    running.run("kill", str(pid))


def test_down_leaves_nothing_but_files_and_foreign_processes(running: Machine, clean: dict[str, str]) -> None:
    pid = foreign_process_in_place_of(running, "versitygw")
    running.cluster("down")
    running.run("kill", str(pid))
    assert traces(running) == clean
    assert running.cluster("leftovers").stdout == "nothing\n"


def test_down_leaves_nothing_of_a_cluster_whose_processes_were_killed(running: Machine, clean: dict[str, str]) -> None:
    running.run("sh", "-c", "kill -9 -1", check=False)
    assert running.cluster("leftovers", check=False).stdout.count("mount ") >= 4
    running.cluster("down")
    assert traces(running) == clean


def test_down_of_nothing_is_fine(machine: Machine, clean: dict[str, str]) -> None:
    machine.cluster("down")
    machine.cluster("down")
    assert traces(machine) == clean


def test_s3_keys_data_and_images_outlive_down_but_not_purge(running: Machine) -> None:
    keys, images = running.folder() / "s3.json", running.folder() / "store" / "containerd"
    before = keys.read_text()
    (running.folder() / "s3" / "bucket").mkdir()
    running.cluster("down")
    running.cluster("up")
    assert keys.read_text() == before
    assert (running.folder() / "s3" / "bucket").is_dir()
    assert images.is_dir()
    running.cluster("down", "--purge")
    assert not keys.exists()
    assert not (running.folder() / "s3").exists()
    assert not images.exists()


def test_a_taken_port_is_named_with_its_holder_and_nothing_is_started(machine: Machine, clean: dict[str, str]) -> None:
    machine.cluster("down")
    listen = (
        "import os, socket, time; s = socket.create_server(('', 10250)); print(os.getpid(), flush=True); time.sleep(60)"
    )
    listener = machine.start("python3", "-c", listen)
    assert listener.stdout is not None
    pid = listener.stdout.readline().strip()
    try:
        refused = machine.cluster("up", check=False)
        assert refused.returncode == 1
        assert "10250 for kubelet" in refused.stderr
        assert "python" in refused.stderr
    finally:
        machine.run("kill", pid)
        listener.wait()
    machine.cluster("down")
    assert traces(machine) == clean
