"""What `status` and `wait` wait for. Pure: whether an object has come to it, or never will."""

from speculator_operator.cli.cluster import KubeObject

UNDER_WAY_PHASES = {"Pending", "Starting", "Canary", "Terminating"}


def settled(obj: KubeObject) -> bool:
    """Whether nothing is under way that will end by itself, as far as the operator has seen the spec."""
    status = obj.get("status") or {}
    seen = status.get("observedGeneration", 0) >= obj["metadata"].get("generation", 0)
    return bool(seen and status.get("phase", "Pending") not in UNDER_WAY_PHASES)
