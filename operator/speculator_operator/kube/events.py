"""Kubernetes events (events.k8s.io/v1) about a Speculator: one per transition.

The name of an event is a digest of what happened, so posting the same transition again, after a restart for example,
meets the event that exists and changes nothing.
"""

import hashlib
import logging
from datetime import datetime

from speculator_operator.kube.client import FIELD_MANAGER, KINDS, Kube, KubeError, KubeObject
from speculator_operator.reconcile.outcome import EventNote

logger = logging.getLogger(__name__)


def event_object(regarding: KubeObject, note: EventNote, instance: str, now: datetime) -> KubeObject:
    """The event about an object; `note.key` says which transition it was."""
    meta = regarding["metadata"]
    digest = hashlib.sha256("|".join([meta["uid"], note.reason, note.key]).encode()).hexdigest()[:16]
    return {
        "apiVersion": KINDS["Event"].api_version,
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{digest}", "namespace": meta["namespace"]},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": "speculator.dev/operator",
        "reportingInstance": instance[:128],
        "action": note.action,
        "reason": note.reason,
        "type": note.type,
        # The API refuses notes above 1 kB.
        "note": note.message if len(note.message) <= 1000 else note.message[:997] + "...",
        "regarding": {
            "apiVersion": regarding.get("apiVersion", KINDS["Speculator"].api_version),
            "kind": regarding.get("kind", "Speculator"),
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta.get("resourceVersion", ""),
        },
    }


async def post_event(kube: Kube, regarding: KubeObject, note: EventNote, now: datetime) -> bool:
    """Post one event; False if it exists. A failure is logged: events inform, they never hold up a rollout."""
    try:
        await kube.create(event_object(regarding, note, FIELD_MANAGER, now))
    except KubeError as error:
        if not error.conflict:
            logger.warning("event %s was not recorded: %s", note.reason, error)
        return False
    return True
