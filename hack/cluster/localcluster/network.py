"""The node's address, pod routing, masquerading, and their removal. Pods hang on the `ptp` plugin's veth pairs."""

import ipaddress
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .layout import BRIDGE, NFT_TABLE, NODE_ADDRESS, POD_SUBNET, RUNTIME, ClusterError

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_FORWARD_BEFORE = RUNTIME / "ip_forward.before"
# Tables that kube-proxy makes in its nftables mode.
_PROXY_TABLES = (("ip", "kube-proxy"), ("ip6", "kube-proxy"))
_COMMENT = "speculator-cluster"


def set_up() -> None:
    """Give this machine the node's address on a bridge without ports, and route for pods. Idempotent."""
    if not _link_exists(BRIDGE):
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "address", "replace", f"{NODE_ADDRESS}/32", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    if not _FORWARD_BEFORE.exists():
        _FORWARD_BEFORE.write_text(_FORWARD.read_text())
    _FORWARD.write_text("1")
    _run(
        "nft",
        "-f",
        "-",
        text=f"""
        table ip {NFT_TABLE}
        delete table ip {NFT_TABLE}
        table ip {NFT_TABLE} {{
          chain postrouting {{
            type nat hook postrouting priority srcnat;
            ip saddr {POD_SUBNET} ip daddr != {POD_SUBNET} masquerade
          }}
        }}
        """,
    )
    _open_forwarding()


def tear_down() -> None:
    """Remove everything that `set_up`, kube-proxy and the CNI plugin left. Idempotent."""
    for name in _pod_links():
        _run("ip", "link", "delete", name, check=False)
    if _link_exists(BRIDGE):
        _run("ip", "link", "delete", BRIDGE)
    for family, table in _own_tables():
        _run("nft", "delete", "table", family, table)
    for rule in _forward_rules():
        _run("nft", "delete", "rule", "ip", "filter", "FORWARD", "handle", str(rule))
    if _FORWARD_BEFORE.exists():
        _FORWARD.write_text(_FORWARD_BEFORE.read_text())
        _FORWARD_BEFORE.unlink()


def leftovers() -> list[str]:
    """What of ours is still in this machine's network, one line each."""
    found = [f"interface {name}" for name in _pod_links() + ([BRIDGE] if _link_exists(BRIDGE) else [])]
    found += [f"nft table {family} {table}" for family, table in _own_tables()]
    found += [f"nft rule {handle} of ip filter FORWARD" for handle in _forward_rules()]
    return found


def _own_tables() -> list[tuple[str, str]]:
    ours = ("ip", NFT_TABLE), *_PROXY_TABLES
    tables = [entry["table"] for entry in _nft_json("list", "tables") if "table" in entry]
    return [(table["family"], table["name"]) for table in tables if (table["family"], table["name"]) in ours]


def _pod_links() -> list[str]:
    """Host ends of pods' veth pairs: the devices that routes into the pod subnet lead to."""
    subnet = ipaddress.IPv4Network(POD_SUBNET)
    routes = _ip_json("route", "show")
    return sorted(
        {
            route["dev"]
            for route in routes
            if route.get("dev", "").startswith("veth")
            and route["dst"] != "default"
            and ipaddress.IPv4Network(route["dst"]).subnet_of(subnet)
        }
    )


def _open_forwarding() -> None:
    """Let pods through a firewall that drops forwarded packets by default, as Docker sets it up."""
    if _forward_chain().get("policy") == "drop" and not _forward_rules():
        for match in ("saddr", "daddr"):
            rule = f'insert rule ip filter FORWARD ip {match} {POD_SUBNET} accept comment "{_COMMENT}"'
            _run("nft", "-f", "-", text=rule)


def _forward_chain() -> dict[str, Any]:
    chains = [entry["chain"] for entry in _nft_json("list", "chains", "ip") if "chain" in entry]
    return next((chain for chain in chains if (chain["table"], chain["name"]) == ("filter", "FORWARD")), {})


def _forward_rules() -> list[int]:
    if not _forward_chain():
        return []
    entries = _nft_json("list", "chain", "ip", "filter", "FORWARD")
    return [entry["rule"]["handle"] for entry in entries if entry.get("rule", {}).get("comment") == _COMMENT]


def _link_exists(name: str) -> bool:
    # Not /sys/class/net: that shows the network namespace in which /sys was mounted, which need not be ours.
    return any(link["ifname"] == name for link in _ip_json("link", "show"))


def _ip_json(*arguments: str) -> list[dict[str, Any]]:
    if not shutil.which("ip"):
        return []
    entries: list[dict[str, Any]] = json.loads(_run("ip", "-json", *arguments) or "[]")
    return entries


def _nft_json(*arguments: str) -> list[dict[str, Any]]:
    if not shutil.which("nft"):
        # Before the first `up` has installed it, there is nothing of ours to see.
        return []
    entries: list[dict[str, Any]] = json.loads(_run("nft", "--json", *arguments))["nftables"]
    return entries


def _run(*command: str, text: str | None = None, check: bool = True) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
