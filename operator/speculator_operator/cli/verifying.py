"""The command verify: recompute decisions from the evidence in the ledger."""

import typer

from speculator_operator.cli import options, show
from speculator_operator.cli.cluster import Cluster, Where


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
        checks = [{"what": f.what, "agrees": f.agrees, "message": f.message} for f in findings]
        screen.data({"version": version, "agrees": agree, "checks": checks}, output)
    else:
        screen.lines(f"{'agrees' if f.agrees else 'TAMPERED'}  {f.what}: {f.message}" for f in findings)
        undecided = len(findings) == 1 and agree
        end = "nothing was decided on it yet" if undecided else "every decision follows from its evidence"
        screen.lines([f"Version {version}: {end if agree else 'what the ledger holds is NOT what was decided on'}."])
    if not agree:
        raise typer.Exit(1)
