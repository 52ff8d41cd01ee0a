"""The command verify: recompute decisions from the evidence in the ledger."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from speculator_operator.cli import options, show
from speculator_operator.cli.cluster import Cluster, Where

if TYPE_CHECKING:
    from speculator_operator.cli.ledger import Finding


def verify(
    name: options.Name,
    version: options.Version,
    namespace: options.Namespace = None,
    output: options.Output = None,
    endpoint: options.Endpoint = None,
    credentials: options.WhoseCredentials = options.Credentials.AUTO,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Recompute each decision on a version from the evidence in the bucket, and say whether it agrees.

    Exit code 0: all agree. 1: something was changed after the decision, or does not follow from its evidence.
    """
    from speculator_operator.cli.ledger import History  # boto3 and scipy take seconds to load.

    cluster, screen = Cluster(Where(kubeconfig, context, namespace)), show.Screen()
    findings = History(cluster, cluster.speculator(name), credentials, endpoint).verify(version)
    agree = all(finding.agrees for finding in findings)
    if output is not None:
        checks = [
            {"what": f.what, "agrees": f.agrees, "recomputed": f.recomputed, "message": f.message} for f in findings
        ]
        screen.data({"version": version, "agrees": agree, "checks": checks}, output)
    else:
        screen.lines(f"{_word(f)}  {f.what}: {f.message}" for f in findings)
        screen.lines([f"Version {version}: {_summary(findings)}."])
    if not agree:
        raise typer.Exit(1)


def _word(finding: "Finding") -> str:
    if not finding.agrees:
        return "TAMPERED"
    return "unmeasured" if finding.decision and not finding.recomputed else "agrees"


def _summary(findings: "Sequence[Finding]") -> str:
    """Says how much was recomputed: a decision of a person is believed, not proved."""
    wrong = sum(not finding.agrees for finding in findings)
    decisions = [finding for finding in findings if finding.decision]
    recomputed = sum(finding.recomputed for finding in decisions)
    if wrong:
        return f"{wrong} of {len(findings)} checks failed: the ledger is NOT what was decided on"
    if not decisions:
        return "nothing was decided on it yet"
    others = len(decisions) - recomputed
    if not recomputed:
        return f"the ledger is whole; its {others} decisions were not made from pairs of blocks, so none was recomputed"
    rest = f"; {others} not made from pairs of blocks, so not recomputed" if others else ""
    return f"{recomputed} of {len(decisions)} decisions recomputed, in agreement{rest}"
