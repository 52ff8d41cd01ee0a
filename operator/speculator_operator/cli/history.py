"""Versions and the decisions on them, from the cluster's window or from the ledger; and how they compare. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from speculator_operator.api.version import SpeculatorVersionStatus, verdict_fields, version_spec
from speculator_operator.cli import show
from speculator_operator.cli.cluster import KubeObject
from speculator_operator.cli.errors import NotFound
from speculator_runtime.contracts.ledger import VerdictRecord, version_prefix
from speculator_runtime.storage.chain import StoredManifest

HEADER = (
    "VERSION",
    "SHA256",
    "STEP",
    "REQUESTS (ALL)",
    "ACCEPT",
    "SPEEDUP",
    "PAIRS",
    "VERDICT",
    "DECIDED BY",
    "DECIDED AT",
    "REASON",
)

Row = Mapping[str, Any]
"""A SpeculatorVersion's `spec` and `status`: one for each version, or from the ledger one for each decision."""


def ledger_rows(
    speculator: str, location: str, stored: Iterable[StoredManifest], verdicts: Iterable[VerdictRecord]
) -> tuple[list[KubeObject], list[str]]:
    """Rows from the ledger: each decision in order, then the versions nobody decided on yet; and what is wrong there.

    location: `s3://BUCKET/PREFIX`. A manifest that the cluster would refuse (anybody may have written it) still gets
    its row, with number and digest alone.
    """
    specs, problems = {}, []
    for one in stored:
        number = one.manifest.version
        try:
            spec = version_spec(one.manifest, speculator, f"{location}/{version_prefix(number)}", one.sha256)
            specs[number] = spec.wire()
        except ValueError as error:
            specs[number] = {"version": number, "sha256": one.manifest.sha256}
            problems.append(f"manifest of version {number}: {' '.join(str(error).split())}")
    rows = []
    for record in sorted(verdicts, key=lambda record: record.sequence):
        status = SpeculatorVersionStatus(**verdict_fields(record)).wire()
        del status["phase"]
        rows.append({"spec": specs[record.version.version], "status": status})
    decided = {row["spec"]["version"] for row in rows}
    return rows + [{"spec": spec, "status": {}} for number, spec in specs.items() if number not in decided], problems


def history_lines(rows: Iterable[Row], unicode: bool = True) -> list[Text]:
    """The table of `history`."""
    return show.columns(HEADER, (_row(row, unicode) for row in rows))


def _row(row: Row, unicode: bool) -> list[Text | str]:
    spec, status = row["spec"], row.get("status") or {}
    data = spec.get("data") or {}
    against = status.get("againstTargetOnly")
    decided = show.moment(status.get("decidedAt"))
    return [
        str(spec["version"]),
        show.short(spec.get("sha256", "")),
        str(spec.get("trainingStep", show.NONE)),
        f"{data.get('requests', 0)} ({data.get('requestsTotal', 0)})" if data else show.NONE,
        (status.get("acceptLength") and f"{float(status['acceptLength']):.2f}") or show.NONE,
        show.speedup(against),
        str(against["pairs"]) if against else show.NONE,
        show.phase(status.get("verdict") or status.get("phase") or "", unicode),
        status.get("decidedBy") or show.NONE,
        decided.strftime("%Y-%m-%d %H:%M:%S") if decided else show.NONE,
        status.get("reason") or show.NONE,
    ]


def find(rows: Sequence[Row], number: int) -> Row:
    """The latest row of a version."""
    found = [row for row in rows if row["spec"]["version"] == number]
    if not found:
        known = ", ".join(str(n) for n in sorted({row["spec"]["version"] for row in rows})) or "none"
        raise NotFound(
            f"There is no version {number}; there are: {known}. --ledger finds those that the cluster no longer shows."
        )
    return found[-1]


def differences(one: Row, other: Row) -> list[tuple[str, str, str]]:
    """Field, first, second for each field that differs, in the order of the API."""
    left, right = _flat(one), _flat(other)
    names = [*left, *(name for name in right if name not in left)]
    return [
        (name, left.get(name, show.NONE), right.get(name, show.NONE))
        for name in names
        if left.get(name) != right.get(name)
    ]


def _flat(row: Row) -> dict[str, str]:
    flat: dict[str, str] = {}
    for part in ("spec", "status"):
        _flatten(row.get(part) or {}, "", flat)
    return flat


def _flatten(value: Mapping[str, Any], path: str, into: dict[str, str]) -> None:
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        if isinstance(item, Mapping):
            _flatten(item, here, into)
        elif name != "observedGeneration":
            into[here] = show.short(item) if name.lower().endswith("sha256") else str(item)
