"""Deletion of a Speculator: what is ours in the cluster goes, the ledger in S3 stays. Needs neither S3 nor agents.

Owner references alone would do it after the Speculator is gone; here it is done before the finalizer goes, so that
`kubectl delete speculator` comes back when pods, Services and Secrets are gone. After a while it lets go anyway: the
garbage collector ends it.
"""

import asyncio
from datetime import datetime

from speculator_operator.api.base import FINALIZER
from speculator_operator.kube.applier import owned_by
from speculator_operator.kube.client import Kube, KubeObject, gather_objects

OWNED_KINDS = (
    "StatefulSet",
    "Deployment",
    "PodDisruptionBudget",
    "Service",
    "ConfigMap",
    "Secret",
    "ServiceAccount",
    "PersistentVolumeClaim",
    "SpeculatorVersion",
)
WAIT_SECONDS = 90.0


def selector(name: str) -> str:
    """Label selector of everything that belongs to a Speculator."""
    return f"speculator.dev/speculator={name}"


async def remove_owned(kube: Kube, speculator: KubeObject, now: datetime) -> bool:
    """One step of deletion; True when nothing is left, or when it has waited long enough."""
    meta = speculator["metadata"]
    namespace, name = meta["namespace"], meta["name"]
    objects = await gather_objects(kube, OWNED_KINDS, namespace, selector(name))
    ours = [obj for obj in objects if owned_by(obj, meta["uid"])]
    going = [obj for obj in ours if not obj["metadata"].get("deletionTimestamp")]
    await asyncio.gather(
        *(kube.delete(obj["kind"], namespace, obj["metadata"]["name"], obj["metadata"]["uid"]) for obj in going)
    )
    if not ours and not await kube.list("Pod", namespace, selector(name)):
        return True
    began = datetime.fromisoformat(meta["deletionTimestamp"].replace("Z", "+00:00"))
    return (now - began).total_seconds() > WAIT_SECONDS


async def add_finalizer(kube: Kube, speculator: KubeObject) -> KubeObject:
    """Put our finalizer beside those that are there; conditional on the version read."""
    return await _set_finalizers(kube, speculator, [*(speculator["metadata"].get("finalizers") or []), FINALIZER])


async def drop_finalizer(kube: Kube, speculator: KubeObject) -> None:
    """Take our finalizer away, others stay."""
    kept = [name for name in speculator["metadata"].get("finalizers") or [] if name != FINALIZER]
    await _set_finalizers(kube, speculator, kept)


async def _set_finalizers(kube: Kube, speculator: KubeObject, finalizers: list[str]) -> KubeObject:
    meta = speculator["metadata"]
    patch = {"metadata": {"finalizers": finalizers, "resourceVersion": meta["resourceVersion"]}}
    return await kube.merge("Speculator", meta["namespace"], meta["name"], patch)
