"""What the demo sees of the loop, and when it is over. Pure: readings in, state out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROMOTED, REJECTED = "Promoted", "Rejected"


@dataclass(frozen=True)
class Estimate:
    """A measured speedup over target-only with its bounds; None where a bound is not known yet."""

    estimate: float
    lower: float
    upper: float | None
    pairs: int

    @classmethod
    def parse(cls, speedup: Mapping[str, Any] | None) -> "Estimate | None":
        """From a `speedup` of a status (decimal strings); None when absent."""
        if not speedup:
            return None
        upper = speedup.get("upper")
        return cls(
            estimate=float(speedup["estimate"]),
            lower=float(speedup["lower"]),
            upper=None if upper is None else float(upper),
            pairs=int(speedup["pairs"]),
        )


@dataclass(frozen=True)
class VersionView:
    """One SpeculatorVersion as the demo reports it."""

    version: int
    phase: str
    verdict: str | None
    reason: str
    message: str
    accept_length: float | None
    speedup: Estimate | None
    alpha: float | None
    training_step: int
    requests_total: int
    created: str
    decided_at: str | None

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> "VersionView":
        """From the object of the API server."""
        spec, status = obj["spec"], obj.get("status") or {}
        accept, alpha = status.get("acceptLength"), status.get("alpha")
        return cls(
            version=int(spec["version"]),
            phase=status.get("phase", "Published"),
            verdict=status.get("verdict"),
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            accept_length=None if accept is None else float(accept),
            speedup=Estimate.parse(status.get("againstTargetOnly")),
            alpha=None if alpha is None else float(alpha),
            training_step=int(spec.get("trainingStep", 0)),
            requests_total=int((spec.get("data") or {}).get("requestsTotal", 0)),
            created=str(spec.get("created", "")),
            decided_at=status.get("decidedAt"),
        )


@dataclass(frozen=True)
class Reading:
    """One look at the cluster. `at` is in seconds since the demo began."""

    at: float
    phase: str
    message: str
    mode: str
    stable: int | None
    candidate: int | None
    speedup: Estimate | None
    trainer: Mapping[str, Any]
    versions: Sequence[VersionView]

    @classmethod
    def parse(cls, at: float, speculator: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> "Reading":
        """From the Speculator and its SpeculatorVersions as the API server gives them."""
        status = speculator.get("status") or {}
        views = sorted((VersionView.parse(v) for v in versions), key=lambda v: v.version)
        return cls(
            at=at,
            phase=status.get("phase", "Pending"),
            message=status.get("message", ""),
            mode=status.get("mode") or "",
            stable=(status.get("stable") or {}).get("version"),
            candidate=(status.get("candidate") or {}).get("version"),
            speedup=Estimate.parse(status.get("speedup")),
            trainer=status.get("trainer") or {},
            versions=views,
        )


@dataclass(frozen=True)
class GateSample:
    """The interval of one candidate after so many pairs, from the evidence."""

    version: int
    speedup: Estimate


@dataclass
class Story:
    """Everything that was seen, oldest first. `origin` is the Unix time at which the demo began."""

    bar: float
    origin: float
    readings: list[Reading] = field(default_factory=list)
    burn_in: int = 10
    gate: list[GateSample] = field(default_factory=list)
    news: list[tuple[float, str]] = field(default_factory=list)

    def add(self, reading: Reading) -> list[str]:
        """Take a reading in; returns what is new in it, one sentence each."""
        before = self.readings[-1] if self.readings else None
        self.readings.append(reading)
        new = list(_news(before, reading))
        self.news += [(reading.at, text) for text in new]
        return new

    @property
    def trial(self) -> Estimate | None:
        """What the evidence says so far about the version on trial."""
        candidate = self.latest.candidate if self.latest else None
        return next((s.speedup for s in reversed(self.gate) if s.version == candidate), None)

    @property
    def _win(self) -> tuple[float, VersionView] | None:
        for reading in self.readings:  # a later verdict (fallback, say) does not undo what was shown
            for version in reading.versions:
                if version.verdict == PROMOTED and version.speedup and version.speedup.lower > self.bar:
                    return reading.at, version
        return None

    @property
    def latest(self) -> Reading | None:
        """The newest reading."""
        return self.readings[-1] if self.readings else None

    @property
    def winner(self) -> VersionView | None:
        """The first version that was promoted with a lower bound above the bar."""
        found = self._win
        return found[1] if found else None

    @property
    def promoted_at(self) -> float | None:
        """Seconds at which the winner was first seen as promoted."""
        found = self._win
        return found[0] if found else None

    def why_not(self) -> str:
        """Why nothing was promoted, for the end of a run that failed."""
        if self.winner:
            return ""
        latest = self.latest
        if latest is None:
            return "the Speculator was never read"
        promoted = [v for v in latest.versions if v.verdict == PROMOTED and v.speedup]
        if promoted:
            best = max(promoted, key=lambda v: v.speedup.lower if v.speedup else 0.0)
            assert best.speedup
            lower = best.speedup.lower
            return f"version {best.version} was promoted, but its lower bound {lower:.3f} is not above {self.bar}"
        if latest.candidate is not None and latest.speedup is not None:
            speedup = latest.speedup
            return (
                f"time was up while version {latest.candidate} was on trial: {speedup.estimate:.2f} with a lower bound "
                f"of {speedup.lower:.2f} after {speedup.pairs} pairs; it has to be above {self.bar}"
            )
        if latest.candidate is not None:
            return f"time was up while version {latest.candidate} was on trial, before the first look of the gate"
        if latest.versions:
            last = latest.versions[-1]
            said = last.message or last.reason or "no reason given"
            return f"version {last.version} ended as {last.verdict or last.phase}: {said}"
        return f"the trainer published no version: {latest.trainer.get('message') or latest.message or latest.phase}"


def _news(before: Reading | None, now: Reading) -> Sequence[str]:
    lines = []
    if before is None or before.phase != now.phase:
        lines.append(f"phase {now.phase}" + (f": {now.message}" if now.message else ""))
    known = {v.version: v for v in before.versions} if before else {}
    for version in now.versions:
        earlier = known.get(version.version)
        if earlier is None:
            lines.append(
                f"version {version.version} published at training step {version.training_step}, "
                f"learnt from {version.requests_total} requests"
            )
        if version.verdict and (earlier is None or earlier.verdict != version.verdict):
            lines.append(f"version {version.version} {version.verdict}{_figures(version.speedup)}")
    if now.candidate is not None and (before is None or before.candidate != now.candidate):
        lines.append(f"version {now.candidate} goes on trial")
    return lines


def _figures(speedup: Estimate | None) -> str:
    if speedup is None:
        return ""
    upper = "" if speedup.upper is None else f"..{speedup.upper:.2f}"
    return f": speedup {speedup.estimate:.2f} (bounds {speedup.lower:.2f}{upper}) after {speedup.pairs} pairs"
