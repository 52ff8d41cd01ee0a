"""Brings the cluster up and takes it down. Every step can be repeated, and copes with what a killed run left."""

import contextlib
import fcntl
import json
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from . import build, network, oci, processes, programs, remains, requirements
from .layout import NODE_ADDRESS, NODE_NAME, PORTS, RUNTIME, S3_PORT, S3_REGION, ClusterError, Layout
from .progress import note, step

_ANSWER_SECONDS = 2.0
_KUBELET_SETTLES_SECONDS = 3.0


def up(layout: Layout) -> None:
    """Bring the cluster up, to a Ready node with an S3 server. Seconds when it was up before, nothing when it is up.

    Raises ClusterError when the machine lacks something, another cluster runs here, or a program does not come up.
    """
    requirements.ensure(layout)
    build.build(layout)
    with locked(layout):
        _own_the_machine(layout)
        new = not (layout.state / "etcd" / "member").is_dir()
        if new:
            # Without etcd's data nothing of an earlier run can go on: begin on a clean machine.
            _take_down(layout)
            _own_the_machine(layout)
        _prepare(layout)
        if _runs_as_it_should(layout):
            note("cluster is up already")
            return
        with step("network and ports"):
            network.set_up()
            remains.make_cgroups(layout)
            _end_orphans(layout)
            _check_ports()
        with step("etcd, containerd, S3 server, API server"):
            _start_foundation(layout, new)
        with step("controllers, scheduler, kubelet, proxy, DNS: node Ready"):
            _start_node(layout)


def down(layout: Layout, purge: bool = False) -> None:
    """End everything and remove every trace but files: images, programs and S3 data stay unless `purge`.

    Raises ClusterError naming what could not be removed.
    """
    requirements.ensure_root()
    with locked(layout):
        owner = _owner()
        if owner not in (None, layout.cluster) and processes.marked(owner):
            raise ClusterError(f"the cluster that runs here is {owner}, not {layout.cluster}: name it with --name")
        with step("take the cluster down"):
            _take_down(layout)
        if purge:
            with step("remove images, S3 data and credentials"):
                for folder in (layout.store, layout.s3, layout.logs):
                    shutil.rmtree(folder, ignore_errors=True)
                for file in (layout.s3_credentials, layout.images):
                    file.unlink(missing_ok=True)
        if left := remains.leftovers(layout):
            raise ClusterError("could not remove:\n" + "\n".join(f"  {item}" for item in left))


def is_up(layout: Layout) -> bool:
    """Whether every program runs and the node is Ready."""
    return all(processes.is_running(name) for name in _needed()) and node_is_ready(layout)


def node_is_ready(layout: Layout) -> bool:
    """Whether the API server answers and says that the node is Ready."""
    jsonpath = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return kubectl(layout, "get", "node", NODE_NAME, "-o", jsonpath, check=False).strip() == "True"


def kubectl(
    layout: Layout, *arguments: str, check: bool = True, text: str | None = None, config: str = "admin.conf"
) -> str:
    """Run kubectl with the cluster's own configuration. Raises ClusterError with its message when `check`."""
    command = [
        str(layout.bin / "kubectl"),
        f"--kubeconfig={layout.state / config}",
        "--request-timeout=10s",
        *arguments,
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def ctr(layout: Layout, *arguments: str, check: bool = True) -> str:
    """Run ctr in the namespace of Kubernetes. Raises ClusterError with its message when `check`."""
    command = [str(layout.bin / "ctr"), "-a", str(layout.containerd), "-n", "k8s.io", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise ClusterError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def image_names(layout: Layout) -> list[str]:
    """Names of the images in containerd's store."""
    return ctr(layout, "images", "ls", "-q").split()


def import_image(layout: Layout, name: str, layer: bytes, config: dict[str, object]) -> None:
    """Put an image of one layer into containerd's store."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "image.tar")
        oci.write_image(archive, name, layer, config)
        ctr(layout, "images", "import", "--local", str(archive))


@contextlib.contextmanager
def locked(layout: Layout, name: str = "lock") -> Iterator[None]:
    """Hold one of the cluster's locks; another command that holds it is waited for."""
    layout.cluster.mkdir(parents=True, exist_ok=True)
    with (layout.cluster / f".{name}").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("waiting for another `cluster` command to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _own_the_machine(layout: Layout) -> None:
    """Make this the machine's cluster; a dead one's leftovers are removed, a live one is a reason to refuse."""
    owner = _owner()
    if owner not in (None, layout.cluster):
        if processes.marked(owner):
            raise ClusterError(
                f"another local cluster runs on this machine, in {owner}; there is room for one. "
                f"End it first: SPECULATOR_CACHE={owner.parent} hack/cluster/cluster --name {owner.name} down"
            )
        _take_down(Layout(repo=layout.repo, cache=owner.parent, cluster=owner))
    RUNTIME.mkdir(mode=0o711, exist_ok=True)
    (RUNTIME / "owner").write_text(str(layout.cluster))


def _owner() -> Path | None:
    file = RUNTIME / "owner"
    return Path(file.read_text()) if file.is_file() else None


def _prepare(layout: Layout) -> None:
    """Folders, configuration, certificates and S3 keys, each only where it is missing or different."""
    for folder in (layout.state, layout.store, layout.s3, layout.logs):
        folder.mkdir(parents=True, exist_ok=True)
    plugins = requirements.cni_plugins()
    assert plugins is not None, "requirements.ensure has seen to it"
    kubernetes = next(module for module in build.MODULES if module.name == "k8s")
    programs.write_configuration(layout, plugins, build.version_of(layout, kubernetes))
    if not layout.s3_credentials.is_file():
        keys = {
            "endpoint": f"http://{NODE_ADDRESS}:{S3_PORT}",
            "region": S3_REGION,
            "accessKeyId": secrets.token_hex(10),
            "secretAccessKey": secrets.token_hex(20),
        }
        layout.s3_credentials.touch(mode=0o600)
        layout.s3_credentials.write_text(json.dumps(keys, indent=2) + "\n")
    if not layout.kubeconfig.is_file():
        with step("certificates"):
            for phase in (("certs", "all"), ("kubeconfig", "all", "--kubeconfig-dir", str(layout.state))):
                command = [
                    str(layout.bin / "kubeadm"),
                    "init",
                    "phase",
                    *phase,
                    "--config",
                    str(layout.state / "kubeadm.yaml"),
                ]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode != 0:
                    raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")


def _all_programs(layout: Layout) -> list[processes.Program]:
    makers = (
        programs.etcd,
        programs.containerd,
        programs.s3_server,
        programs.kube_apiserver,
        programs.kube_controller_manager,
        programs.kube_scheduler,
        programs.kubelet,
        programs.kube_proxy,
        programs.coredns,
    )
    return [make(layout) for make in makers]


def _needed() -> list[str]:
    """Names of the programs without which the cluster is not up; BuildKit runs only once an image was built."""
    return [name for name in programs.ORDER_OF_ENDING if name != "buildkitd"]


def _runs_as_it_should(layout: Layout) -> bool:
    return all(processes.is_running_as(program) for program in _all_programs(layout)) and node_is_ready(layout)


def _end_orphans(layout: Layout) -> None:
    """End programs of ours whose pid files were lost. Shims stay: containerd finds them, their containers go on."""
    known = {processes.pid_of(name) for name in programs.ORDER_OF_ENDING}

    def is_shim(pid: int) -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/exe").readlink().name.startswith("containerd-shim")
        return False

    orphans = [
        (pid, started) for pid, started in processes.marked(layout.cluster) if pid not in known and not is_shim(pid)
    ]
    processes.end(orphans, patience=2.0)


def _check_ports() -> None:
    """Raise ClusterError naming every port of ours that a foreign program holds, and that program."""
    taken = []
    for name, address in PORTS.items():
        if processes.is_running(name.removesuffix(" peers")):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as problem:
                holder = subprocess.run(
                    ["ss", "-Hltnp", f"sport = :{address[1]}"], capture_output=True, text=True
                ).stdout.strip()
                taken.append(
                    f"  {address[0]}:{address[1]} for {name}: {problem.strerror}; {holder or 'holder unknown'}"
                )
    if taken:
        raise ClusterError("these ports are taken; end the programs that hold them:\n" + "\n".join(taken))


def _start_foundation(layout: Layout, new: bool) -> None:
    foundation = [programs.etcd, programs.containerd, programs.s3_server, programs.kube_apiserver]
    for make in foundation:
        processes.start(layout, make(layout))
    processes.await_ready("containerd", lambda: _containerd_answers(layout), layout, ["containerd"])
    if new:
        _forget_containers(layout)
    if programs.PAUSE_IMAGE not in image_names(layout):
        layer = oci.layer_of({"pause": (layout.bin / "pause").read_bytes()})
        import_image(layout, programs.PAUSE_IMAGE, layer, {"Entrypoint": ["/pause"]})
    processes.await_ready("the S3 server", lambda: _listens(NODE_ADDRESS, S3_PORT), layout, ["versitygw"])
    processes.await_ready("the API server", lambda: _api_is_ready(layout), layout, ["etcd", "kube-apiserver"])


def _start_node(layout: Layout) -> None:
    # kubeadm would make these two: its administrators' group, and the API server's way to logs and exec.
    bindings = (
        ("kubeadm:cluster-admins", "cluster-admin", "Group", "kubeadm:cluster-admins"),
        ("kubelet-api", "system:kubelet-api-admin", "User", "kube-apiserver-kubelet-client"),
    )
    manifest = {"apiVersion": "v1", "kind": "List", "items": [_binding(*binding) for binding in bindings]}
    kubectl(layout, "apply", "-f", "-", text=json.dumps(manifest), config="super-admin.conf")
    # A kubelet that starts again finds its node Ready from before, and reports NotReady for a moment.
    settled = 0.0 if processes.is_running_as(programs.kubelet(layout)) else time.monotonic() + _KUBELET_SETTLES_SECONDS
    for make in (
        programs.kube_controller_manager,
        programs.kube_scheduler,
        programs.kubelet,
        programs.kube_proxy,
        programs.coredns,
    ):
        processes.start(layout, make(layout))
    needs = [name for name in _needed() if name != "versitygw"]
    processes.await_ready(
        "the node", lambda: time.monotonic() > settled and node_is_ready(layout), layout, needs, seconds=120
    )
    get_account = ("get", "serviceaccount", "default", "-o", "name")
    processes.await_ready(
        "the default service account", lambda: bool(kubectl(layout, *get_account, check=False)), layout, needs
    )


def _take_down(layout: Layout) -> None:
    processes.stop(["kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns", "buildkitd"])
    remains.end_containers(layout)
    if processes.is_running("containerd"):
        _forget_containers(layout)
    processes.stop(["containerd", "versitygw"])
    # Its state goes: there is nothing to flush, and a graceful end would wait for open watches.
    processes.stop(["kube-apiserver", "etcd"], patience=0.5)
    remains.remove(layout)
    shutil.rmtree(layout.state, ignore_errors=True)


def _forget_containers(layout: Layout) -> None:
    """Take the containers of an ended run out of containerd's records, so that a new run does not meet them."""
    for kind, remove in (("tasks", ("rm", "-f")), ("containers", ("rm",)), ("sandboxes", ("rm", "-f"))):
        if names := ctr(layout, kind, "ls", "-q", check=False).split():
            ctr(layout, kind, *remove, *names, check=False)


def _binding(name: str, role: str, kind: str, subject: str) -> dict[str, object]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": kind, "name": subject}],
    }


def _containerd_answers(layout: Layout) -> bool:
    return "Server" in ctr(layout, "version", check=False)


def _listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=_ANSWER_SECONDS):
        return True
    return False


def _api_is_ready(layout: Layout) -> bool:
    context = ssl.create_default_context(cafile=str(layout.state / "pki" / "ca.crt"))
    url = f"https://{NODE_ADDRESS}:{PORTS['kube-apiserver'][1]}/readyz"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        # Anything but success is raised as an HTTPError.
        opener.open(url, timeout=_ANSWER_SECONDS).close()
    except (urllib.error.URLError, OSError):
        return False
    return True
