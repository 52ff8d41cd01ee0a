"""Where everything of the local cluster lies, and the addresses it uses.

Two places. `cluster` (under the cache) outlives a reboot: `state` is the Kubernetes of one run and goes with `down`,
while `store` (images), `s3` and the S3 credentials stay until `down --purge`. `RUNTIME` holds sockets, pid files and
mounts; it is the same for every user and clone, because a machine has room for one such cluster only (bridge,
addresses, nft tables).
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

NODE_NAME = "local"
NODE_ADDRESS = "10.87.0.1"
POD_SUBNET = "10.88.0.0/16"
SERVICE_SUBNET = "10.96.0.0/16"
BRIDGE = "spec0"
NFT_TABLE = "speculator-cluster"
S3_PORT = 7070
S3_REGION = "us-east-1"
RUNTIME = Path("/run/speculator-cluster")
# In the environment of every program we start, shims included, so that they are found even when pid files are lost.
MARKER = "SPECULATOR_CLUSTER_DIR"
# TCP ports our programs listen on, with the address; a foreign listener on one of them is named before anything starts.
PORTS = {
    "etcd": ("127.0.0.1", 12379),
    "etcd peers": ("127.0.0.1", 12380),
    "kube-apiserver": (NODE_ADDRESS, 6443),
    "kube-controller-manager": (NODE_ADDRESS, 10257),
    "kube-scheduler": (NODE_ADDRESS, 10259),
    "kubelet": (NODE_ADDRESS, 10250),
    "coredns": (NODE_ADDRESS, 53),
    "versitygw": (NODE_ADDRESS, S3_PORT),
}


class ClusterError(Exception):
    """What was wrong and what to do, for the terminal."""


@dataclass(frozen=True)
class Layout:
    """Paths of one cluster. `cluster` is its own folder, `bin` is shared by all clusters of the cache."""

    repo: Path
    cache: Path
    cluster: Path

    @classmethod
    def from_environment(cls, name: str) -> "Layout":
        """Layout of the cluster `name` under SPECULATOR_CACHE (default: the user's cache folder)."""
        if not name.replace("-", "").isalnum():
            raise ClusterError(f"cluster name {name!r}: use letters, digits and dashes only")
        default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculator-operator"
        cache = Path(os.environ.get("SPECULATOR_CACHE") or default).absolute()
        return cls(repo=Path(__file__).resolve().parents[3], cache=cache, cluster=cache / name)

    @property
    def bin(self) -> Path:
        """Programs built from Go modules."""
        return self.cache / "bin"

    @property
    def tools(self) -> Path:
        """The pinned Go modules."""
        return self.repo / "hack" / "cluster" / "tools"

    @property
    def state(self) -> Path:
        """Kubernetes' own state: etcd, certificates, kubelet, configuration."""
        return self.cluster / "state"

    @property
    def store(self) -> Path:
        """Images and build cache."""
        return self.cluster / "store"

    @property
    def s3(self) -> Path:
        """The S3 server's buckets."""
        return self.cluster / "s3"

    @property
    def s3_credentials(self) -> Path:
        """Endpoint, region and keys of the S3 server, JSON, mode 600."""
        return self.cluster / "s3.json"

    @property
    def cgroup(self) -> str:
        """The cgroup that holds all containers: cgroups are not namespaced, so its name is the cluster's alone."""
        return f"speculator-{hashlib.sha256(str(self.cluster).encode()).hexdigest()[:8]}"

    @property
    def images(self) -> Path:
        """Names of the images that `cluster images` built last, JSON."""
        return self.cluster / "images.json"

    @property
    def logs(self) -> Path:
        """One file a program, of the last run."""
        return self.cluster / "logs"

    @property
    def kubeconfig(self) -> Path:
        """Cluster administrator."""
        return self.state / "admin.conf"

    @property
    def containerd(self) -> Path:
        """containerd's socket; in RUNTIME because a socket's path must stay under 108 bytes."""
        return RUNTIME / "containerd.sock"

    @property
    def buildkitd(self) -> Path:
        """BuildKit's socket."""
        return RUNTIME / "buildkitd.sock"
