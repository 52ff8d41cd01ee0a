"""A machine of its own for tests of the local cluster: new network, mount and process namespaces on this one.

Whatever a test does in there, `kill -9 -1` included, no other cluster or process on this machine notices.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = REPOSITORY / "hack" / "cluster" / "cluster"
RUNTIME = Path("/run/speculator-cluster")
# A firewall such as Docker sets up: what is not allowed to be forwarded is dropped.
FIREWALL = "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"


@dataclass(frozen=True)
class Machine:
    """Runs commands in the namespaces of process `init`; the cluster under test is called `name`."""

    init: int
    name: str

    def run(self, *command: str, check: bool = True, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        enter = ["nsenter", f"--target={self.init}", "--net", "--mount", "--pid", "--"]
        done = subprocess.run([*enter, *command], input=text, capture_output=True, text=True, timeout=180)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done

    def start(self, *command: str) -> "subprocess.Popen[str]":
        enter = ["nsenter", f"--target={self.init}", "--net", "--mount", "--pid", "--"]
        return subprocess.Popen([*enter, *command], stdout=subprocess.PIPE, text=True)

    def cluster(
        self, *arguments: str, check: bool = True, settings: Iterable[str] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Run the cluster command, with `NAME=VALUE` settings in its environment."""
        return self.run("env", *settings, str(COMMAND), "--name", self.name, *arguments, check=check)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.run(*self._kubectl(), *arguments, text=text).stdout

    def wait_for_pod(self, pod: str) -> None:
        """Until the pod is Ready now, not as an old status has it."""
        self.run(*self._kubectl(), "wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=60s")

    def folder(self) -> Path:
        return cache() / self.name

    def _kubectl(self) -> list[str]:
        return [str(cache() / "bin" / "kubectl"), f"--kubeconfig={self.folder() / 'state' / 'admin.conf'}"]


def cache() -> Path:
    """Where the local cluster keeps its programs and data."""
    return Path(os.environ.get("SPECULATOR_CACHE") or Path.home() / ".cache" / "speculator-operator")


@contextmanager
def new_machine() -> Iterator[Machine]:
    """A machine with loopback and a firewall, nothing else; at the end every process in it is killed."""
    RUNTIME.mkdir(exist_ok=True)
    script = f"""set -e
        # A cluster that runs on this machine has mounts, of which the new namespace begins with a copy.
        awk '$2 ~ "^({RUNTIME}|{cache()})/" {{print $2}}' /proc/self/mounts | sort -r | xargs -r umount --lazy
        mount -t tmpfs tmpfs {RUNTIME}
        ip link set lo up
        nft '{FIREWALL}'
        echo ready
        exec sleep infinity"""
    unshare = subprocess.Popen(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert unshare.stdout is not None
    assert unshare.stdout.readline() == "ready\n"
    init = int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()[0])
    machine = Machine(init, f"test-{os.getpid()}")
    try:
        yield machine
    finally:
        machine.cluster("down", "--purge", check=False)
        unshare.kill()
        unshare.wait()
        for folder in cache().glob(f"{machine.name}*"):
            _remove_when_free(folder)


def traces(machine: Machine) -> dict[str, str]:
    """What a cluster could leave on a machine, as the system's own tools show it, not as the cluster's code does."""
    # The machine's first process does not reap: what has ended stays there as a zombie.
    living = "ps -eo stat=,comm= | awk '$1 !~ /^Z/ && $2 !~ /^(ps|sh|awk)$/ {print $2}'"
    return {
        "processes": machine.run("sh", "-c", living).stdout,
        "mounts": machine.run("cat", "/proc/1/mounts").stdout,
        "interfaces": machine.run("sh", "-c", "ip -oneline link | cut -d: -f2").stdout,
        "addresses and routes": machine.run("sh", "-c", "ip -brief address; ip route").stdout,
        "nftables": machine.run("nft", "list", "ruleset").stdout,
        "network namespaces": machine.run("sh", "-c", "ls /run/netns || true").stdout,
        "forwarding": machine.run("cat", "/proc/sys/net/ipv4/ip_forward").stdout,
        "cgroups": "\n".join(sorted(str(path) for path in Path("/sys/fs/cgroup").glob("**/speculator-*"))),
    }


def _remove_when_free(folder: Path) -> None:
    """Remove a folder in which processes that just ended may still hold mounts of a dying namespace."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"could not remove {folder}")
