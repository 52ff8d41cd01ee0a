"""The operator process's own settings: one typed tree, filled from flags and environment variables in `main`.

What a user wants of a Speculator is never here; that is in its spec.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class ImageDefaults:
    """Images of pods whose Speculator names none."""

    runtime: str = "speculator-runtime:latest"
    sglang: str = "speculator-sglang:latest"


@dataclass(frozen=True)
class LoopSettings:
    """How often the operator looks, in seconds, and how much it does at once."""

    rollout_seconds: float = 2.0
    idle_seconds: float = 20.0
    objects_seconds: float = 20.0
    ledger_seconds: float = 5.0
    discovery_seconds: float = 30.0
    backoff_first_seconds: float = 1.0
    backoff_limit_seconds: float = 60.0
    concurrent: int = 16
    watchdog_seconds: float = 180.0


@dataclass(frozen=True)
class OperatorSettings:
    """Everything `speculator-operator` can be told."""

    identity: str
    namespaces: tuple[str, ...] = ()
    """Empty: all namespaces."""
    lease_namespace: str = "default"
    lease_name: str = "speculator-operator"
    lease_seconds: float = 15.0
    host: str = "0.0.0.0"
    port: int = 8080
    images: ImageDefaults = field(default_factory=ImageDefaults)
    loops: LoopSettings = field(default_factory=LoopSettings)
