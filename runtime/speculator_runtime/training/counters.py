"""What the trainer has counted since its lineage began: it travels in checkpoints and into manifests."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from speculator_runtime.contracts.ledger import DataWindow
from speculator_runtime.contracts.plan import VersionRef

from .sample import Sample


@dataclass
class Progress:
    """Counters of a lineage. `window_*` and the Counters run since the last published version."""

    requests_total: int = 0
    window_requests: int = 0
    window_tokens: int = 0
    domains: Counter[str] = field(default_factory=Counter)
    draft_versions: Counter[int] = field(default_factory=Counter)
    target_digests: Counter[str] = field(default_factory=Counter)
    first_request: str = ""
    last_request: str = ""
    published: int = 0
    latest: VersionRef | None = None
    latest_manifest_sha256: str = ""
    published_at_step: int = 0

    def count(self, sample: Sample) -> None:
        """A sample was trained on for the first time."""
        header = sample.header
        self.requests_total += 1
        self.window_requests += 1
        self.window_tokens += sample.tokens.numel()
        self.domains[header.domain] += 1
        self.draft_versions[header.draft_version] += 1
        self.target_digests[header.target_digest] += 1
        self.first_request = self.first_request or header.request_id
        self.last_request = header.request_id

    def window(self) -> DataWindow:
        """As the manifest has it."""
        return DataWindow(
            requests=self.window_requests,
            requests_total=self.requests_total,
            tokens=self.window_tokens,
            domains=dict(sorted(self.domains.items())),
            draft_versions=dict(sorted(self.draft_versions.items())),
            target_digests=dict(sorted(self.target_digests.items())),
            first_request=self.first_request,
            last_request=self.last_request,
        )

    def published_as(self, ref: VersionRef, manifest_sha256: str, step: int) -> None:
        """A version was published: the next window begins."""
        self.published += 1
        self.adopt(ref, manifest_sha256)
        self.published_at_step = step
        self.window_requests = self.window_tokens = 0
        self.domains.clear()
        self.draft_versions.clear()
        self.target_digests.clear()
        self.first_request = self.last_request = ""

    def adopt(self, ref: VersionRef, manifest_sha256: str) -> None:
        """The version that the next one names as its parent."""
        self.latest, self.latest_manifest_sha256 = ref, manifest_sha256

    def to_json(self) -> dict[str, Any]:
        """JSON-compatible; `from_json` reads it back."""
        data = {name: getattr(self, name) for name in _PLAIN}
        data |= {name: sorted(getattr(self, name).items()) for name in _COUNTERS}
        return data | {"latest": self.latest.model_dump() if self.latest else None}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Progress":
        """Raises KeyError or ValueError where `data` is not from `to_json`."""
        progress = Progress(**{name: data[name] for name in _PLAIN})
        for name in _COUNTERS:
            getattr(progress, name).update(dict(map(tuple, data[name])))
        progress.latest = VersionRef.model_validate(data["latest"]) if data["latest"] else None
        return progress


_COUNTERS = ("domains", "draft_versions", "target_digests")
_PLAIN = (
    "requests_total",
    "window_requests",
    "window_tokens",
    "first_request",
    "last_request",
    "published",
    "latest_manifest_sha256",
    "published_at_step",
)
