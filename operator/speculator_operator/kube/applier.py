"""Brings owned objects to what is desired, and writes only where something differs.

An object is applied when its manifest changed since this replica last applied it, when it is missing, or when somebody
else changed it since (by metadata.generation where the kind counts it, else by resourceVersion). So an idle Speculator
costs reads only. An object of the same name that is not ours is left alone and reported.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from speculator_operator.kube.client import Kube, KubeError, KubeObject
from speculator_operator.reconcile.observed import Problem

KEPT_KINDS = frozenset({"PersistentVolumeClaim", "SpeculatorVersion", "Pod"})
"""Never pruned here: data, versions (bounded by the history limit), and what other controllers own."""


class ObjectId(NamedTuple):
    """Kind and name within the Speculator's namespace."""

    kind: str
    name: str


@dataclass(frozen=True)
class _Applied:
    digest: str
    uid: str
    marker: str


class Applier:
    """Objects of one Speculator."""

    def __init__(self, kube: Kube, owner_uid: str) -> None:
        self._kube = kube
        self._owner = owner_uid
        self._applied: dict[ObjectId, _Applied] = {}

    async def ensure(
        self, desired: Iterable[KubeObject], live: Mapping[ObjectId, KubeObject] | None
    ) -> tuple[Problem, ...]:
        """Apply what differs, in order. `live` are the objects that were listed just now; None: they were not."""
        problems = []
        for obj in desired:
            identity = ObjectId(obj["kind"], obj["metadata"]["name"])
            if not self._differs(identity, obj, live):
                continue
            try:
                problem = await self._apply(identity, obj)
            except KubeError as error:
                if error.status not in (400, 403, 422):
                    raise
                problem = Problem("ObjectRefused", f"{error}; correct the spec, or the operator's rights")
            if problem is not None:
                problems.append(problem)
        return tuple(problems)

    async def prune(self, desired: Iterable[KubeObject], live: Mapping[ObjectId, KubeObject]) -> None:
        """Delete objects that we own and no longer want."""
        wanted = {ObjectId(obj["kind"], obj["metadata"]["name"]) for obj in desired}
        for identity, obj in live.items():
            if identity in wanted or identity.kind in KEPT_KINDS or not owned_by(obj, self._owner):
                continue
            meta = obj["metadata"]
            await self._kube.delete(identity.kind, meta["namespace"], identity.name, meta["uid"])
            self._applied.pop(identity, None)

    def _differs(self, identity: ObjectId, obj: KubeObject, live: Mapping[ObjectId, KubeObject] | None) -> bool:
        known = self._applied.get(identity)
        if known is None or known.digest != digest(obj):
            return True
        if live is None:
            return False
        seen = live.get(identity)
        return seen is None or (seen["metadata"]["uid"], marker(seen)) != (known.uid, known.marker)

    async def _apply(self, identity: ObjectId, obj: KubeObject) -> Problem | None:
        namespace = obj["metadata"]["namespace"]
        if identity not in self._applied:
            there = await self._kube.get(identity.kind, namespace, identity.name)
            if there is not None and not owned_by(there, self._owner):
                return Problem(
                    "NameTaken",
                    f"{identity.kind} {namespace}/{identity.name} exists and is not this Speculator's; "
                    "delete or rename it, or rename the Speculator",
                )
        main = {key: value for key, value in obj.items() if key != "status"}
        result = await self._kube.apply(main)
        if "status" in obj:
            head = {key: obj[key] for key in ("apiVersion", "kind")}
            meta = {"name": identity.name, "namespace": namespace}
            result = await self._kube.apply({**head, "metadata": meta, "status": obj["status"]}, "status")
        self._applied[identity] = _Applied(digest(obj), result["metadata"]["uid"], marker(result))
        return None


def digest(obj: KubeObject) -> str:
    """Of a manifest's content."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()


def marker(obj: KubeObject) -> str:
    """Changes when the desired part of an object changes."""
    meta = obj["metadata"]
    return f"generation {meta['generation']}" if meta.get("generation") else f"version {meta['resourceVersion']}"


def owned_by(obj: KubeObject, uid: str) -> bool:
    """Whether an owner reference names this uid."""
    return any(ref.get("uid") == uid for ref in obj["metadata"].get("ownerReferences") or [])
