"""The cluster's programs: their command lines and configuration files. Pure but for `write_configuration`."""

import json
from pathlib import Path

from .layout import NODE_ADDRESS, NODE_NAME, POD_SUBNET, PORTS, RUNTIME, S3_PORT, S3_REGION, SERVICE_SUBNET, Layout
from .processes import Program

PAUSE_IMAGE = "localhost/speculator/pause:1"
_ETCD, _ETCD_PEERS = (f"http://{host}:{port}" for host, port in (PORTS["etcd"], PORTS["etcd peers"]))


def configuration(layout: Layout, cni_plugins: Path, kubernetes: str) -> dict[Path, str]:
    """Configuration files of all programs, path to content; `kubernetes` is the version, as in v1.36.3."""
    state = layout.state
    return {
        state / "kubeadm.yaml": _kubeadm(layout, kubernetes),
        state / "cni" / "10-pods.conflist": json.dumps(_CNI),
        state / "containerd.toml": _containerd(layout, cni_plugins),
        state / "buildkitd.toml": _BUILDKITD.format(
            root=layout.store / "buildkit", socket=layout.containerd, cgroup=layout.cgroup
        ),
        state / "kubelet.yaml": _kubelet(layout),
        state / "kube-proxy.yaml": _KUBE_PROXY.format(kubeconfig=layout.kubeconfig),
        state / "Corefile": _COREFILE.format(kubeconfig=layout.kubeconfig),
    }


def write_configuration(layout: Layout, cni_plugins: Path, kubernetes: str) -> None:
    """Write the configuration files that are missing or different."""
    for path, content in configuration(layout, cni_plugins, kubernetes).items():
        if not path.is_file() or path.read_text() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def s3_server(layout: Layout) -> Program:
    """The S3 server; its keys are in its environment, not on its command line, where any user could read them."""
    keys = json.loads(layout.s3_credentials.read_text())
    return Program(
        "versitygw",
        ("versitygw", "--port", f"{NODE_ADDRESS}:{S3_PORT}", "--region", S3_REGION, "--quiet", "posix", str(layout.s3)),
        {"ROOT_ACCESS_KEY": keys["accessKeyId"], "ROOT_SECRET_KEY": keys["secretAccessKey"]},
    )


def etcd(layout: Layout) -> Program:
    """The API server's store. It outlives `kill -9`; a power loss it need not, so no write waits for the disk."""
    return Program(
        "etcd",
        (
            "etcd",
            f"--data-dir={layout.state / 'etcd'}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={_ETCD_PEERS}",
            f"--initial-advertise-peer-urls={_ETCD_PEERS}",
            f"--initial-cluster=default={_ETCD_PEERS}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ),
    )


def containerd(layout: Layout) -> Program:
    """Runs containers and keeps images."""
    config = layout.state / "containerd.toml"
    return Program("containerd", ("containerd", "--config", str(config), "--log-level", "warn"), files=(config,))


def buildkitd(layout: Layout) -> Program:
    """Builds images straight into containerd's store."""
    config = layout.state / "buildkitd.toml"
    argv = ("buildkitd", "--config", str(config), "--addr", f"unix://{layout.buildkitd}")
    return Program("buildkitd", argv, files=(config,))


def kube_apiserver(layout: Layout) -> Program:
    """The API server, with RBAC and the node authorizer as on any real cluster."""
    pki = layout.state / "pki"
    return Program(
        "kube-apiserver",
        (
            "kube-apiserver",
            f"--etcd-servers={_ETCD}",
            f"--advertise-address={NODE_ADDRESS}",
            f"--bind-address={NODE_ADDRESS}",
            f"--secure-port={PORTS['kube-apiserver'][1]}",
            f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-cluster-ip-range={SERVICE_SUBNET}",
            f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--allow-privileged=true",
        ),
    )


def kube_controller_manager(layout: Layout) -> Program:
    """The built-in controllers."""
    pki = layout.state / "pki"
    return Program(
        "kube-controller-manager",
        (
            "kube-controller-manager",
            f"--kubeconfig={layout.state}/controller-manager.conf",
            f"--bind-address={NODE_ADDRESS}",
            "--leader-elect=false",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
        ),
    )


def kube_scheduler(layout: Layout) -> Program:
    """Puts pods on the node."""
    kubeconfig = f"--kubeconfig={layout.state}/scheduler.conf"
    return Program(
        "kube-scheduler", ("kube-scheduler", kubeconfig, f"--bind-address={NODE_ADDRESS}", "--leader-elect=false")
    )


def kubelet(layout: Layout) -> Program:
    """Runs the node's pods."""
    config = layout.state / "kubelet.yaml"
    return Program(
        "kubelet",
        (
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={layout.state}/kubelet.conf",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_ADDRESS}",
            f"--root-dir={layout.state}/kubelet",
            f"--cert-dir={layout.state}/kubelet-pki",
        ),
        files=(config,),
    )


def kube_proxy(layout: Layout) -> Program:
    """Makes Services work, through nftables."""
    config = layout.state / "kube-proxy.yaml"
    return Program("kube-proxy", ("kube-proxy", f"--config={config}"), files=(config,))


def coredns(layout: Layout) -> Program:
    """Resolves names of Services, and passes on the rest."""
    config = layout.state / "Corefile"
    return Program("coredns", ("coredns", "-conf", str(config)), files=(config,))


# In the order in which `down` ends them: first what would start containers again.
ORDER_OF_ENDING = (
    "kubelet",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "coredns",
    "buildkitd",
    "containerd",
    "kube-apiserver",
    "etcd",
    "versitygw",
)

_CNI = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            # Routed, without a bridge: needs no br_netfilter. Masquerading is in our own nft table, see network.py.
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": str(RUNTIME / "ipam"),
                "ranges": [[{"subnet": POD_SUBNET}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}

_KUBE_PROXY = f"""\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: {NODE_NAME}
clusterCIDR: {POD_SUBNET}
healthzBindAddress: ""
metricsBindAddress: 127.0.0.1:10249
clientConnection: {{{{kubeconfig: {{kubeconfig}}}}}}
conntrack: {{{{maxPerCore: 0, min: 0}}}}
"""

_COREFILE = f"""\
.:53 {{{{
  bind {NODE_ADDRESS}
  kubernetes cluster.local in-addr.arpa {{{{
    kubeconfig {{kubeconfig}}
  }}}}
  forward . /etc/resolv.conf
  cache 5
}}}}
"""

# Room for the layers of one runtime image (8 GB with the packed form); those of older locks go first.
_BUILDKITD = """\
root = "{root}"
insecure-entitlements = ["network.host"]
[worker.oci]
  enabled = false
[worker.containerd]
  enabled = true
  address = "{socket}"
  namespace = "k8s.io"
  networkMode = "host"
  defaultCgroupParent = "{cgroup}/buildkit"
  gc = true
  [[worker.containerd.gcpolicy]]
    all = true
    maxUsedSpace = "12GB"
"""


def _kubeadm(layout: Layout, kubernetes: str) -> str:
    return f"""\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: {NODE_ADDRESS}, bindPort: {PORTS["kube-apiserver"][1]}}}
nodeRegistration: {{name: {NODE_NAME}, criSocket: "unix://{layout.containerd}"}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: {kubernetes}
certificatesDir: {layout.state}/pki
networking: {{serviceSubnet: {SERVICE_SUBNET}, podSubnet: {POD_SUBNET}}}
apiServer: {{certSANs: [127.0.0.1, localhost, {NODE_ADDRESS}]}}
"""


def _containerd(layout: Layout, cni_plugins: Path) -> str:
    return f"""\
version = 3
root = "{layout.store}/containerd"
state = "{RUNTIME}/containerd"
[grpc]
  address = "{layout.containerd}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  # Where CAP_SYS_RESOURCE is missing every sandbox would die with "can't get final child's PID".
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{cni_plugins}"]
  conf_dir = "{layout.state}/cni"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.internal.v1.opt']
  path = "{layout.store}/opt"
"""


def _kubelet(layout: Layout) -> str:
    return f"""\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {NODE_ADDRESS}
healthzPort: 0
containerRuntimeEndpoint: unix://{layout.containerd}
cgroupDriver: cgroupfs
cgroupRoot: /{layout.cgroup}
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
authentication:
  x509: {{clientCAFile: {layout.state}/pki/ca.crt}}
  webhook: {{enabled: true}}
  anonymous: {{enabled: false}}
authorization: {{mode: Webhook}}
clusterDNS: [{NODE_ADDRESS}]
clusterDomain: cluster.local
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: 200Mi, nodefs.available: 1%, imagefs.available: 1%}}
podLogsDir: {layout.state}/pod-logs
"""
