"""The command plot: accept length, speedup with its bounds, versions and modes over time, from the ledger."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from speculator_operator.cli import options, show
from speculator_operator.cli.cluster import Cluster, Where
from speculator_operator.cli.errors import CliError
from speculator_runtime.contracts.ledger import Verdict
from speculator_runtime.contracts.plan import Arm

if TYPE_CHECKING:
    from speculator_operator.cli.series import Series

SUFFIXES = (".png", ".svg", ".pdf")
MARKERS = {
    Verdict.PROMOTED: ("^", "tab:green"),
    Verdict.REJECTED: ("x", "tab:red"),
    Verdict.KEPT_STABLE: ("s", "tab:gray"),
    Verdict.ABORTED: ("D", "tab:orange"),
    Verdict.FALLBACK: ("v", "tab:brown"),
    Verdict.RECOVERED: ("o", "tab:blue"),
}


def plot(
    name: options.Name,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Where to write it (.png, .svg or .pdf); by default NAME.png.")
    ] = None,
    namespace: options.Namespace = None,
    endpoint: options.Endpoint = None,
    credentials: options.WhoseCredentials = options.Credentials.AUTO,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Draw accept length, speedup with its bounds, versions and modes over time, from the ledger."""
    target = file or Path(f"{name}.png")
    if target.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{str(target)!r} does not end in {', '.join(SUFFIXES)}", param_hint="--file")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise CliError("plot needs matplotlib: pip install 'speculator-operator[operator,plot]'.") from error
    from speculator_operator.cli.ledger import History  # boto3 and scipy take seconds to load.

    mpl.use("agg")
    cluster = Cluster(Where(kubeconfig, context, namespace))
    found = History(cluster, cluster.speculator(name), credentials, endpoint).series()
    if not found.spans:
        raise CliError(f"The ledger of {name} has neither decisions nor measurements yet; there is nothing to draw.")
    try:
        draw(found, f"{cluster.namespace}/{name}", target)
    except OSError as error:
        raise CliError(f"Could not write {target}: {error.strerror}.") from error
    counts = f"{len(found.decided)} decisions, {len(found.accepts)} blocks of drafters"
    show.Screen().lines([f"Wrote {target}: {counts}."])


def draw(found: "Series", title: str, target: Path) -> None:
    """Three panels with one time axis. Raises OSError."""
    from matplotlib import dates
    from matplotlib.figure import Figure

    typeless: Any = dates  # Its classes are untyped.
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes: Any = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.4))
    _accepts(axes[0], found)
    _speedups(axes[1], found)
    _serving(axes[2], found)
    axes[0].set_title(title)
    locator = typeless.AutoDateLocator()
    axes[2].xaxis.set_major_locator(locator)
    axes[2].xaxis.set_major_formatter(typeless.ConciseDateFormatter(locator))
    axes[2].set_xlabel("time (UTC)")
    figure.savefig(target, dpi=130)


def _accepts(axis: Any, found: "Series") -> None:
    versions = sorted({point.version for point in found.accepts})
    for index, version in enumerate(versions):
        for arm, marker in ((Arm.CANDIDATE, "o"), (Arm.STABLE, "+")):
            points = [point for point in found.accepts if (point.version, point.arm) == (version, arm)]
            if points:
                axis.plot(
                    [point.at for point in points],
                    [point.accept_length for point in points],
                    marker,
                    color=f"C{index % 10}",
                    markersize=5,
                    alpha=0.7,
                    label=f"version {version} as {arm.value.lower()}",
                )
    axis.axhline(1.0, color="gray", linewidth=0.8, linestyle=":")
    axis.set_ylabel("accept length\n(tokens per verify step)")
    if versions:
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _speedups(axis: Any, found: "Series") -> None:
    for verdict, (marker, color) in MARKERS.items():
        entries = [(e, e.speedup) for e in found.decided if e.verdict is verdict and e.speedup is not None]
        if not entries:
            continue
        below = [interval.estimate - interval.lower for _, interval in entries]
        above = [min(interval.upper, 10 * interval.estimate) - interval.estimate for _, interval in entries]
        axis.errorbar(
            [entry.at for entry, _ in entries],
            [interval.estimate for _, interval in entries],
            yerr=(below, above),
            fmt=marker,
            color=color,
            capsize=4,
            label=verdict.value,
        )
        for entry, interval in entries:
            where: tuple[datetime, float] = (entry.at, interval.estimate)
            axis.annotate(f" {entry.version}", where, xytext=(6, 4), textcoords="offset points", fontsize="small")
    axis.axhline(1.0, color="gray", linewidth=0.8, linestyle=":")
    axis.set_ylabel("speedup over\ntarget-only decoding")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _serving(axis: Any, found: "Series") -> None:
    for span in found.spans:
        style = {"color": "lightgray", "hatch": "//"} if span.target_only else {"color": f"C{(span.version or 0) % 10}"}
        axis.barh(0, span.end - span.start, left=span.start, height=0.8, alpha=0.6, edgecolor="white", **style)
        text = "target only" if span.target_only else f"version {span.version}"
        axis.annotate(text, (span.start + (span.end - span.start) / 2, 0), ha="center", va="center", fontsize="small")
    axis.set_yticks([])
    axis.set_ylabel("serves\nat rest")
