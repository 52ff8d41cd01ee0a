"""The closed loop with real pods: serve, learn, publish, canary, promote, survive a kill, leave nothing behind.

One run for the whole module (a tiny random target, blocks of two seconds); each test looks at one thing it must show.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from demo.kube import OPERATOR_NAMESPACE, Kube
from demo.objectstore import Bucket
from demo.observe import Reading, Story
from demo.place import Place

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMESPACE, NAME = "e2e-loop", "loop"
MANIFESTS = Path(__file__).parent / "manifests"
PROMOTION_SECONDS = 400.0


@dataclass
class Loop:
    """A finished run."""

    kube: Kube
    prefix: str
    story: Story
    ready_output: str
    trial_when_killed: int
    evidence_when_killed: set[str]
    killed_pods: list[str]
    traffic: dict[str, Any]

    @property
    def version(self) -> dict[str, Any]:
        """The promoted version's resource."""
        assert self.story.winner, self.story.why_not()
        wanted = self.story.winner.version
        return next(v for v in self.kube.versions(NAME) if v["spec"]["version"] == wanted)


def applied(kube: Kube, prefix: str, place: Place) -> None:
    """kubectl apply of policies and Speculator, with this run's ledger."""
    speculator = yaml.safe_load((MANIFESTS / "speculator.yaml").read_text())
    speculator["spec"]["storage"]["s3"] |= {
        "prefix": prefix,
        "endpoint": place.s3.endpoint,
        "region": place.s3.region,
    }
    kube.kubectl("apply", "-n", kube.namespace, "-f", str(MANIFESTS / "policies.yaml"))
    kube.kubectl("apply", "-n", kube.namespace, "-f", "-", stdin=json.dumps(speculator))


def kill_operator(kube: Kube) -> list[str]:
    """SIGKILL to every operator pod, as a node failure would; returns their names."""
    selector = ("-n", OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=speculator-operator")
    pods = kube.kubectl_output("get", "pods", *selector, "-o", "name").split()
    kube.kubectl("delete", *pods, "-n", OPERATOR_NAMESPACE, "--grace-period=0", "--force")
    return pods


def evidence_keys(bucket: Bucket, prefix: str) -> set[str]:
    """Parts of evidence in this run's ledger."""
    return {key for key in bucket.keys(f"{prefix}/versions") if "/evidence/" in key}


@pytest.fixture(scope="module")
def loop(
    place: Place,
    installed: Callable[[str], Kube],
    tiny_target: str,
    bucket: Bucket,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Loop]:
    out = tmp_path_factory.mktemp("loop")
    kube = installed(NAMESPACE)
    if kube.speculator(NAME):
        kube.delete(NAME)
    prefix = "loop/" + datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    applied(kube, prefix, place)
    ready = kube.kubectl_output(
        "wait", "--for=condition=Ready", f"speculator/{NAME}", "-n", NAMESPACE, "--timeout=150s"
    )
    url = kube.service_url(NAME)
    command = [
        str(Path(sys.executable).parent / "speculator-traffic"), "--url", url, "--api", "chat", "--model", "tiny",
        "--domains", "sql", "--concurrency", "3", "--max-tokens", "64", "--duration", "600",
        "--summary", str(out / "summary.json"),
    ]  # fmt: skip
    with (out / "traffic.log").open("w") as log:
        traffic = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    story = Story(bar=1.02, origin=time.time())
    killed: list[str] = []
    evidence: set[str] = set()
    trial = 0
    try:
        while story.winner is None and time.time() - story.origin < PROMOTION_SECONDS:
            seen = kube.read(NAME)
            if seen is not None:
                story.add(Reading.parse(time.time() - story.origin, *seen))
                # The status has no figure before the burn-in: that the trial is under way shows in the ledger.
                if not killed and story.latest and story.latest.candidate is not None:
                    evidence = evidence_keys(bucket, prefix)
                    if len(evidence) >= 4:
                        trial = story.latest.candidate
                        killed = kill_operator(kube)
            time.sleep(0.5)
    finally:
        traffic.send_signal(signal.SIGINT)
        traffic.wait(timeout=60)
        kube.collect(NAME, out)
    yield Loop(kube, prefix, story, ready, trial, evidence, killed, json.loads((out / "summary.json").read_text()))
    if kube.speculator(NAME):
        kube.delete(NAME)


def test_kubectl_wait_sees_it_ready(loop: Loop) -> None:
    assert "condition met" in loop.ready_output


def test_a_version_is_promoted_on_measured_speedup(loop: Loop) -> None:
    winner = loop.story.winner
    assert winner is not None, loop.story.why_not()
    assert winner.speedup is not None
    assert winner.speedup.lower > 1.02
    assert winner.speedup.pairs >= 10
    assert winner.accept_length is not None
    assert winner.accept_length > 1.0


def test_a_killed_operator_goes_on_with_the_same_trial(loop: Loop, bucket: Bucket) -> None:
    assert loop.killed_pods, "no moment in mid-canary was seen: the trial was over before four parts of evidence"
    assert loop.evidence_when_killed < evidence_keys(bucket, loop.prefix), "evidence was lost, or none came afterwards"
    verdicts = [
        key for key in bucket.keys(f"{loop.prefix}/versions/{loop.trial_when_killed:06d}") if "/verdicts/" in key
    ]
    assert len(verdicts) == 1, "the trial was decided twice, or never"
    verdict = json.loads(bucket.read(verdicts[0]))
    assert verdict["decided_by"] == "gate"
    assert verdict["blocks"] >= 20, "ten pairs or more, those from before the restart among them"
    for version in {r.candidate for r in loop.story.readings if r.candidate is not None}:
        pairs = [r.speedup.pairs for r in loop.story.readings if r.candidate == version and r.speedup is not None]
        assert pairs == sorted(pairs), "pairs were lost by the restart"


def test_no_request_failed_through_swaps_and_restart(loop: Loop) -> None:
    assert loop.traffic["overall"]["requests"] > 60
    assert loop.traffic["errors"] == {}


def test_the_columns_show_phase_stable_speedup_and_mode(loop: Loop) -> None:
    text = loop.kube.kubectl_output("get", "speculators,speculatorversions", "-n", NAMESPACE)
    header = text.splitlines()[0]
    for column in ("PHASE", "STABLE", "CANDIDATE", "SPEEDUP", "MODE", "AGE"):
        assert column in header
    assert re.search(r"Promoted", text)


def test_the_ledger_holds_manifest_evidence_and_the_same_verdict(loop: Loop, bucket: Bucket) -> None:
    version = loop.version
    folder = f"{loop.prefix}/versions/{version['spec']['version']:06d}"
    keys = bucket.keys(folder)
    assert f"{folder}/manifest.json" in keys
    assert f"{folder}/model.safetensors" in keys
    assert [k for k in keys if k.startswith(f"{folder}/evidence/")]
    (verdict,) = [json.loads(bucket.read(k)) for k in keys if k.startswith(f"{folder}/verdicts/")]
    assert verdict["verdict"] == "Promoted"
    assert verdict["evidence_sha256"] == version["status"]["evidenceSha256"]
    assert verdict["against_target_only"]["lower"] == pytest.approx(
        float(version["status"]["againstTargetOnly"]["lower"]), abs=1e-3
    )


def test_deleting_it_leaves_nothing_but_the_ledger(loop: Loop, bucket: Bucket) -> None:
    # The trainer's own checkpoints are not the ledger: it replaces them until it ends.
    before = set(bucket.keys(f"{loop.prefix}/versions"))
    assert before
    assert loop.kube.delete(NAME) == []
    assert loop.kube.speculator(NAME) == {}
    assert before <= set(bucket.keys(loop.prefix))
