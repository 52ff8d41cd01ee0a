"""The summary of a run, as JSON and as a table. Pure.

Conventions are stated in the summary itself: a number without its convention misleads.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table

from .records import Record

CONVENTIONS = {
    "accept_length": "tokens committed per verify step, bonus token included, as the server reported it; "
    "target-only steps are no verify steps and are left out",
    "tokens_per_step": "output tokens per decode step of any kind, a target-only step counting one token",
    "prompt_lookup_accept_length": "the same count for training-free prompt lookup (longest of 3/2/1-gram matches, "
    "a chain as long as the drafter's) replayed on the same tokens",
    "request_throughput": "(T_in + T_out) / t_request in tokens per second, mean over requests (Aurora paper)",
    "tpot": "(last piece - first piece) / (T_out - 1) per request, seconds",
}


class GroupSummary(BaseModel):
    """Requests of one domain, or all of them. Seconds and tokens; None where nothing was measured."""

    model_config = ConfigDict(extra="forbid")

    requests: int
    failed_requests: int
    tokens_in: int
    tokens_out: int
    accept_length: float | None
    tokens_per_step: float | None
    prompt_lookup_accept_length: float | None
    request_throughput: float | None = Field(description="Mean of (T_in + T_out) / t_request.")
    ttft_p50: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    tpot_p99: float | None


class TrafficSummary(BaseModel):
    """What `--summary` writes."""

    model_config = ConfigDict(extra="forbid")

    seconds: float
    output_tokens_per_second: float | None
    cancelled_requests: int = Field(description="In flight when the run was interrupted; not failures.")
    overall: GroupSummary
    domains: dict[str, GroupSummary]
    errors: dict[str, int] = Field(description="Error text -> requests that failed with it.")
    conventions: dict[str, str] = CONVENTIONS


def summarise(records: Sequence[Record], seconds: float, cancelled: int = 0) -> TrafficSummary:
    """Aggregate a run's records; `seconds` is the wall time of the run."""
    domains: dict[str, list[Record]] = {}
    errors: dict[str, int] = {}
    for record in records:
        domains.setdefault(record.domain, []).append(record)
        if record.error:
            errors[record.error] = errors.get(record.error, 0) + 1
    overall = _group(records)
    return TrafficSummary(
        seconds=seconds,
        output_tokens_per_second=overall.tokens_out / seconds if seconds > 0 else None,
        cancelled_requests=cancelled,
        overall=overall,
        domains={domain: _group(members) for domain, members in sorted(domains.items())},
        errors=errors,
    )


def _group(records: Sequence[Record]) -> GroupSummary:
    good = [r for r in records if not r.error]
    ttft = [r.ttft for r in good if r.ttft is not None]
    tpot = [r.tpot for r in good if r.tpot is not None]
    throughput = [(r.tokens_in + r.tokens_out) / r.seconds for r in good if r.seconds > 0 and r.tokens_out > 0]
    lookup_steps = sum(r.prompt_lookup_steps or 0 for r in good)
    return GroupSummary(
        requests=len(records),
        failed_requests=len(records) - len(good),
        tokens_in=sum(r.tokens_in for r in good),
        tokens_out=sum(r.tokens_out for r in good),
        accept_length=accept_length(good),
        tokens_per_step=tokens_per_step(good),
        prompt_lookup_accept_length=(
            sum(r.prompt_lookup_tokens or 0 for r in good) / lookup_steps if lookup_steps else None
        ),
        request_throughput=float(np.mean(throughput)) if throughput else None,
        ttft_p50=_quantile(ttft, 0.5),
        ttft_p99=_quantile(ttft, 0.99),
        tpot_p50=_quantile(tpot, 0.5),
        tpot_p99=_quantile(tpot, 0.99),
    )


def accept_length(records: Sequence[Record]) -> float | None:
    """Tokens per verify step over requests that report it: a ratio of sums, so that long answers weigh more."""
    tokens = steps = 0.0
    for record in records:
        if record.accept_length is None or record.accept_length <= 0:
            continue
        taken = record.verify_steps or max(0, record.tokens_out - 1) / record.accept_length
        steps += taken
        tokens += taken * record.accept_length
    return tokens / steps if steps else None


def tokens_per_step(records: Sequence[Record]) -> float | None:
    """Output tokens per decode step: 1 for target-only decoding, the accept length where every step verifies."""
    tokens = steps = 0.0
    for record in records:
        decoded = max(0, record.tokens_out - 1)  # the first token comes from the prefill
        verified = (record.verify_steps or 0) * (record.accept_length or 0.0)
        tokens += decoded
        steps += (record.verify_steps or 0) + max(0.0, decoded - verified)
    return tokens / steps if steps else None


def _quantile(values: Sequence[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if values else None


def table(summary: TrafficSummary) -> Table:
    """Rows by domain and overall."""
    made = Table(title="Traffic", title_justify="left")
    columns = ("domain", "requests", "failed", "accept length", "prompt lookup", "(in+out)/s", "TTFT p50/p99 ms",
               "TPOT p50/p99 ms")  # fmt: skip
    for column in columns:
        made.add_column(column, justify="left" if column == "domain" else "right")
    rows = (
        [*summary.domains.items(), ("all", summary.overall)] if len(summary.domains) != 1 else summary.domains.items()
    )
    for name, group in rows:
        made.add_row(
            name,
            str(group.requests),
            str(group.failed_requests),
            _number(group.accept_length),
            _number(group.prompt_lookup_accept_length),
            _number(group.request_throughput, 1),
            f"{_milliseconds(group.ttft_p50)} / {_milliseconds(group.ttft_p99)}",
            f"{_milliseconds(group.tpot_p50)} / {_milliseconds(group.tpot_p99)}",
        )
    return made


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"
