"""A Speculator with a history on a real API server and a real S3 server, as an operator would have left it.

Versions 1 (promoted), 2 (rejected as slower) and 3 (on trial) with simulated blocks as evidence; the gate's own code
made the verdicts. No operator runs: where a command waits for one, the test plays it.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from speculator_operator.api.speculator import Speculator
from speculator_operator.api.status import SpeculatorStatus, Speedup, VersionRefStatus
from speculator_operator.cli.main import app
from speculator_operator.gate import Outcome, decide, evaluate
from speculator_operator.gate.policy import GatePolicy
from speculator_operator.reconcile.observed import VersionEntry
from speculator_operator.reconcile.versions import version_object
from speculator_operator.rollout import CandidateRun, PhaseReport, RolloutPolicy, RunState, VersionPhase
from speculator_operator.rollout.records import make_record
from speculator_operator.rollout.state import RejectedDigest
from speculator_runtime.contracts.control import BucketCounters
from speculator_runtime.contracts.ledger import DataWindow, Verdict
from speculator_runtime.contracts.plan import Arm, Block, VersionRef
from speculator_runtime.storage import Ledger
from speculator_runtime.storage.chain import StoredManifest
from support.apiserver import ApiServer, apiserver  # noqa: F401
from support.gate_simulation import CANDIDATE, STABLE, Drafter, World, as_blocks, simulate
from support.s3server import ACCESS_KEY, SECRET_KEY, S3Server, s3_server, use_credentials  # noqa: F401
from support.samples import make_manifest, write_version

AT = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
POLICY = RolloutPolicy(gate=GatePolicy(burn_in_pairs=10, max_pairs=200))
PAIRS = 40
FAST, FASTER, SLOWER = (Drafter(speedup=(factor,) * 4) for factor in (1.2, 1.35, 0.9))


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


@dataclass
class Cli:
    """The plugin with an administrator's kubeconfig, in one namespace."""

    apiserver: ApiServer
    namespace: str
    s3: S3Server
    bucket: str

    def __call__(self, *arguments: str, kubeconfig: Path | None = None, **environment: str) -> Ran:
        env = {"KUBECONFIG": str(kubeconfig or self.apiserver.kubeconfig), **environment}
        done = CliRunner().invoke(app, [*arguments, "-n", self.namespace], env=env)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        # pytest shows it when a test fails, and -s always.
        print(f"\n$ kubectl speculator {' '.join(arguments)}\n{done.stdout}{done.stderr}[exit {done.exit_code}]")
        return Ran(done.exit_code, done.stdout, done.stderr)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.s3.settings(self.bucket, f"{self.namespace}/chat"), client=self.s3.client())

    def get(self, name: str = "chat") -> dict[str, Any]:
        return self.apiserver.get("speculator", name, self.namespace)

    def set_status(self, status: dict[str, Any], kind: str = "speculator", name: str = "chat") -> None:
        patch = yaml.safe_dump({"status": status})
        self.apiserver.kubectl(
            "patch", kind, name, "-n", self.namespace, "--subresource=status", "--type=merge", "-p", patch
        )

    def create(self, name: str = "chat", **spec: Any) -> dict[str, Any]:
        s3 = {"bucket": self.bucket, "endpoint": self.s3.endpoint, "pathStyle": True}
        self.apiserver.apply(
            {
                "apiVersion": "speculator.dev/v1alpha1",
                "kind": "Speculator",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "target": {"model": "hf://tests/tiny"},
                    "storage": {"s3": {**s3, "credentialsSecretRef": {"name": "s3"}}},
                    **spec,
                },
            }
        )
        return self.get(name)

    def create_version(self, speculator: dict[str, Any], stored: StoredManifest, report: PhaseReport) -> None:
        entry = VersionEntry(stored.manifest, stored.sha256)
        labels = {"speculator.dev/speculator": speculator["metadata"]["name"]}
        obj = version_object(Speculator.parse(speculator), entry, report, labels)
        status = obj.pop("status")
        self.apiserver.apply(obj)
        self.set_status(status, "speculatorversion", obj["metadata"]["name"])


def account(cli: Cli, folder: Path, name: str, *rules: dict[str, Any]) -> Path:
    """The kubeconfig of a ServiceAccount that may do only this, in the namespace that its context names."""
    group = "rbac.authorization.k8s.io"
    meta = {"name": name, "namespace": cli.namespace}
    role = {"apiVersion": f"{group}/v1", "metadata": meta}
    cli.apiserver.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {**role, "kind": "Role", "rules": list(rules)},
        {
            **role,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
    )
    token = cli.apiserver.kubectl("create", "token", name, "-n", cli.namespace).stdout.strip()
    return kubeconfig(cli, folder / f"{name}.kubeconfig", {"token": token})


def kubeconfig(cli: Cli, path: Path, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    """The administrator's kubeconfig with another user or cluster, and the namespace in its context."""
    config = yaml.safe_load(cli.apiserver.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = cli.namespace
    config["users"][0]["user"] = user or config["users"][0]["user"]
    config["clusters"][0]["cluster"] |= cluster
    path.write_text(yaml.safe_dump(config))
    return path


def publish(ledger: Ledger, folder: Path, number: int, parent: StoredManifest | None) -> StoredManifest:
    assert ledger.claim_version() == number
    files = write_version(folder / str(number), f"weights {number}".encode())
    window = DataWindow(requests=400, requests_total=400 * number, tokens=51200 * number, domains={"code": 400})
    manifest = make_manifest(number, files, parent)
    manifest = manifest.model_copy(
        update={
            "created": AT.replace(hour=8 + 2 * number, minute=45),
            "training_policy_sha256": "b" * 64,
            "data": window,
            "metrics": {"loss": round(2.5 / number, 3)},
            "training_step": 1200 * number,
        }
    )
    return ledger.publish(number, folder / str(number), manifest)


def run_blocks(drafters: tuple[Drafter, ...], refs: dict[VersionRef, VersionRef], generation: int) -> list[Block]:
    """Blocks of a canary with these drafters, as versions of the ledger."""
    found = as_blocks(simulate(World(load_deviation=0.05), drafters, 1, PAIRS, seed=generation), 0, PAIRS)
    started = AT.timestamp() + 3600 * (generation - 0.1)
    return [
        block.model_copy(
            update={
                "generation": generation,
                "buckets": {size: with_histogram(counters) for size, counters in block.buckets.items()},
                "version": refs[block.version] if block.version else None,
                "started": started + 20.0 * block.index,
            }
        )
        for block in found
    ]


def with_histogram(counters: BucketCounters) -> BucketCounters:
    """Sequences that got one token and those that got two, as the totals say."""
    twice = counters.tokens - counters.sequences
    return counters.model_copy(update={"accept_histogram": {1: counters.sequences - twice, 2: twice} if twice else {}})


@dataclass
class Made:
    """What `arrange` left."""

    stored: dict[int, StoredManifest]


def arrange(cli: Cli, folder: Path) -> Made:
    """Three versions in the ledger and the cluster, the third on trial."""
    ledger, speculator = cli.ledger, cli.create()
    stored: dict[int, StoredManifest] = {}
    for number in (1, 2, 3):
        stored[number] = publish(ledger, folder, number, stored.get(number - 1))
    refs = {number: one.ref for number, one in stored.items()}
    state = RunState(generation=1, ordinal=1)
    records = {}
    for number, drafters in ((1, (FAST,)), (2, (FAST, SLOWER))):
        generation = 2 * number
        blocks = run_blocks(drafters, {CANDIDATE: refs[number], STABLE: refs[1]}, generation)
        ledger.append_evidence(number, blocks)
        state = state.model_copy(update={"generation": generation})
        versions = {Arm.CANDIDATE: refs[number]} | ({Arm.STABLE: state.stable} if state.stable else {})
        report = evaluate(blocks, arm=Arm.CANDIDATE, versions=versions, policy=POLICY.gate, alpha=0.05)
        decision = decide(report, POLICY.gate)
        verdict = {Outcome.PROMOTE: Verdict.PROMOTED, Outcome.REJECT: Verdict.REJECTED}[decision.outcome]
        record = make_record(
            state,
            refs[number],
            verdict,
            (decision.reason, decision.message),
            AT.replace(hour=9 + 2 * number, minute=40),
            report=report,
            blocks=blocks,
            gate=POLICY.gate,
            extra={"capReached": ""},
        )
        ledger.write_verdict(record)
        records[number] = record
        state = state.model_copy(update={"sequence": number, "stable": refs[1]})
    assert [record.verdict for record in records.values()] == [Verdict.PROMOTED, Verdict.REJECTED]
    state = state.model_copy(
        update={
            "generation": 6,
            "policy": POLICY,
            "rejected": (
                RejectedDigest(version=2, sha256=refs[2].sha256, phase=VersionPhase.REJECTED, reason=records[2].reason),
            ),
            "candidate": CandidateRun(
                run_id="run-3",
                version=refs[3],
                ordinal=3,
                phase=VersionPhase.CANARY,
                started_at=AT,
                first_generation=6,
                pods=("chat-engine-0",),
            ),
        }
    )
    for number, phase in ((1, VersionPhase.PROMOTED), (2, VersionPhase.REJECTED), (3, VersionPhase.CANARY)):
        record = records.get(number)
        reason, message = (record.reason, record.message) if record else ("Canary", "on trial")
        cli.create_version(speculator, stored[number], PhaseReport(phase.value, reason, message, record))
    status = SpeculatorStatus(
        observed_generation=1,
        phase="Canary",
        message="against target-only decoding: 1.243, surely between 0.981 and 1.576 after 12 pairs; the lower bound "
        "must pass 1.00",
        conditions=[
            {
                "type": kind,
                "status": holds,
                "reason": reason,
                "message": "",
                "lastTransitionTime": AT,
                "observedGeneration": 1,
            }
            for kind, holds, reason in (
                ("Ready", "True", "Serving"),
                ("Progressing", "True", "Canary"),
                ("Degraded", "False", "AsExpected"),
            )
        ],
        ready_replicas=1,
        replicas=1,
        mode="Speculative",
        stable=VersionRefStatus.of(refs[1]),
        candidate=VersionRefStatus.of(refs[3]),
        step="1/1",
        speedup=Speedup(estimate="1.2434", lower="0.9812", upper="1.5757", pairs=12),
        rollout=state.to_status(),
        latest_version=3,
    )
    cli.set_status(status.wire())
    cli.apiserver.apply(pod(cli.namespace, "chat-engine-0", "engine"), pod(cli.namespace, "chat-trainer-0", "trainer"))
    ready = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": AT.isoformat()}]}
    cli.set_status(ready, "pod", "chat-engine-0")
    return Made(stored)


def pod(namespace: str, name: str, component: str) -> dict[str, Any]:
    labels = {"speculator.dev/speculator": "chat", "app.kubernetes.io/component": component}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": component, "image": "none"}]},
    }


@pytest.fixture(autouse=True)
def no_aws_environment(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session")
def make_cli(apiserver, s3_server):  # noqa: F811
    """A namespace with the Secret for S3, and a bucket."""

    def make() -> Cli:
        cli = Cli(apiserver, apiserver.new_namespace(), s3_server, s3_server.new_bucket())
        cli.apiserver.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "s3", "namespace": cli.namespace},
                "stringData": {"accessKeyId": ACCESS_KEY, "secretAccessKey": SECRET_KEY},
            }
        )
        return cli

    return make


@pytest.fixture(scope="session")
def chat(make_cli, tmp_path_factory) -> Cli:
    """The arranged Speculator `chat`; only for tests that change nothing."""
    cli = make_cli()
    arrange(cli, tmp_path_factory.mktemp("versions"))
    return cli


@pytest.fixture
def own_chat(make_cli, tmp_path) -> Cli:
    """As `chat`, for a test that changes it."""
    cli = make_cli()
    arrange(cli, tmp_path)
    return cli
