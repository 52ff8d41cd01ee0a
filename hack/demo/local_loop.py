"""The demo's loop without Kubernetes, to choose its settings by measurement: PYTHONPATH=hack python -m demo.local_loop

The same manifests, the same programs as processes (S3 server, engine, agent, trainer, traffic), the operator's own
gate; this file only plays the operator's part: a plan for each new version, blocks read, the gate asked.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import boto3
import httpx
import typer
import yaml

from speculator_operator.api.speculator import Speculator
from speculator_operator.api.sync_policy import SyncPolicy
from speculator_operator.api.training_policy import TrainingPolicy
from speculator_operator.gate import decide, evaluate
from speculator_operator.reconcile.policies import rollout_policy
from speculator_operator.resources.configmap import settings_files
from speculator_operator.rollout.policy import RolloutPolicy
from speculator_runtime.contracts.plan import Arm, BlockPage, Plan, Switchback, VersionRef
from speculator_runtime.contracts.settings import StoreSettings
from speculator_runtime.storage import Ledger
from speculator_runtime.traces.keys import write_key_files

from .outputs import read_records
from .target import cache_directory, prepare

ENGINE, CONTROL, AGENT, TRAINER, TRACES, S3 = 18100, 18101, 18170, 18190, 18155, 18107
MANIFESTS = Path(__file__).parent / "manifests"


def manifests() -> tuple[Speculator, TrainingPolicy, SyncPolicy]:
    """The demo's, as the operator reads them."""
    made: list[Any] = []
    for kind in (Speculator, TrainingPolicy, SyncPolicy):
        document = yaml.safe_load((MANIFESTS / f"{kind.__name__.lower()}.yaml").read_text())
        document["metadata"] |= {"namespace": "local", "uid": "local"}
        made.append(kind.parse(document))
    return made[0], made[1], made[2]


def write_settings(folder: Path, target: Path, store: StoreSettings, steps: int | None) -> RolloutPolicy:
    """Settings files as the operator writes them, with this machine's ports and folders."""
    speculator, training, sync = manifests()
    files = {name: json.loads(text) for name, text in settings_files(speculator, training.spec, sync.spec).items()}
    secrets_folder = folder / "secrets"
    secrets_folder.mkdir()
    write_key_files(secrets_folder)
    for name in ("agent", "engine", "trainer"):
        (secrets_folder / f"{name}-token").write_text(secrets.token_hex(16))
    for file in ("engine", "agent", "trainer"):
        settings = files[f"{file}.json"] | {"secrets_directory": str(secrets_folder), "host": "127.0.0.1"}
        if file != "engine":
            settings |= {"store": store.model_dump(), "work_directory": str(folder / file)}
        settings |= {
            "engine": {"port": ENGINE, "control_port": CONTROL, "target_directory": str(target),
                       "trace_endpoint": f"ipc://{folder}/traces"},
            "agent": {"port": AGENT, "engine_url": f"http://127.0.0.1:{CONTROL}", "pod": "local", "pod_uid": "local",
                      "trace_endpoint": f"ipc://{folder}/traces", "trainer_endpoint": f"tcp://127.0.0.1:{TRACES}"},
            "trainer": {"port": TRAINER, "trace_bind": f"tcp://127.0.0.1:{TRACES}", "target_embedding": str(target)},
        }[file]  # fmt: skip
        if file == "engine" and steps is not None:
            settings["shape"] = {"steps": steps, "topk": 1, "draft_tokens": steps + 1}
        (folder / f"{file}.json").write_text(json.dumps(settings, indent=2))
    return rollout_policy(sync.spec, "demo")


@contextlib.contextmanager
def programs(folder: Path) -> Iterator[None]:
    """S3 server, engine, agent, trainer; all ended at the end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local-secret"}
    for name in ("s3", "sidecar"):
        (folder / name).mkdir()
    gateway = [str(cache_directory() / "bin" / "versitygw"), "--port", f"127.0.0.1:{S3}", "posix", "--sidecar",
               str(folder / "sidecar"), str(folder / "s3")]  # fmt: skip
    commands = {"versitygw": gateway}
    for name in ("trainer", "engine", "agent"):
        commands[name] = [
            str(Path(sys.executable).parent / f"speculator-{name}"),
            "--settings",
            f"{folder}/{name}.json",
        ]
    running = []
    try:
        for name, command in commands.items():
            log = (folder / f"{name}.log").open("w")
            extra = {"ROOT_ACCESS_KEY": "local", "ROOT_SECRET_KEY": "local-secret"} if name == "versitygw" else {}
            process = subprocess.Popen(command, env=env | extra, stdout=log, stderr=log)
            running.append(process)
            if name == "versitygw":
                time.sleep(2)
                client = boto3.client(
                    "s3", endpoint_url=f"http://127.0.0.1:{S3}", region_name="us-east-1",
                    aws_access_key_id="local", aws_secret_access_key="local-secret",
                )  # fmt: skip
                client.create_bucket(Bucket="local-loop")
        yield
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            process.wait(timeout=60)


class Driver:
    """The operator's part."""

    def __init__(self, folder: Path, store: StoreSettings, policy: RolloutPolicy, steps: int | None) -> None:
        self._policy, self._ledger = policy, Ledger(store)
        token = {n: (folder / "secrets" / f"{n}-token").read_text() for n in ("agent", "trainer")}
        self._agent = httpx.Client(
            base_url=f"http://127.0.0.1:{AGENT}", headers={"Authorization": f"Bearer {token['agent']}"}, timeout=30
        )
        self._trainer = httpx.Client(
            base_url=f"http://127.0.0.1:{TRAINER}", headers={"Authorization": f"Bearer {token['trainer']}"}, timeout=30
        )
        self._generation = 0
        self._steps = steps

    def trainer(self) -> str:
        """Its status in one line."""
        status = self._trainer.get("/v1/status").raise_for_status().json()
        keys = ("phase", "step", "loss", "train_accept_length", "requests_received", "requests_dropped", "published")
        return ", ".join(f"{key} {status[key]}" for key in keys) + (
            f" ({status['message']})" if status["message"] else ""
        )

    def latest(self) -> VersionRef | None:
        """The newest published version."""
        versions = self._ledger.list_versions()
        return VersionRef(version=versions[-1].version, sha256=versions[-1].sha256) if versions else None

    def start_trial(self, candidate: VersionRef) -> None:
        """Blocks of target-only and candidate."""
        self._generation += 1
        shape = {} if self._steps is None else {"steps": self._steps, "topk": 1, "draft_tokens": self._steps + 1}
        plan = Plan.model_validate(
            {
                "generation": self._generation,
                "candidate": candidate.model_dump(),
                "switchback": Switchback(
                    arms=(Arm.TARGET_ONLY, Arm.CANDIDATE),
                    block_seconds=self._policy.block_seconds,
                    washout_seconds=self._policy.washout_seconds,
                    seed=secrets.randbelow(1 << 31),
                ).model_dump(),
                **({"shape": shape} if shape else {}),
            }
        )
        self._agent.put("/v1/plan", json=plan.model_dump(mode="json")).raise_for_status()

    def judge(self, candidate: VersionRef) -> tuple[str, str]:
        """Outcome and figures after the blocks so far."""
        answer = self._agent.get("/v1/blocks", params={"generation": self._generation, "after": -1})
        blocks = BlockPage.model_validate_json(answer.raise_for_status().text).blocks
        gate = self._policy.gate
        report = evaluate(blocks, arm=Arm.CANDIDATE, versions={Arm.CANDIDATE: candidate}, policy=gate, alpha=gate.alpha)
        found, length = report.against_target_only, report.accept_length
        text = (
            f"{found.pairs} pairs, mean {found.mean:.3f}, deviation {found.deviation:.3f}, interval {found.interval}, "
            f"accept {length and round(length, 2)}, TTFT ratio {report.ttft_ratio and round(report.ttft_ratio, 2)}, "
            f"dropped {dict(report.dropped)}, buckets "
            + str({b: (r.steps, r.speedup and round(r.speedup, 2)) for b, r in report.buckets.items()})
            + f", domains { ({d: r.accept_length and round(r.accept_length, 2) for d, r in report.domains.items()}) }"
        )
        return decide(report, gate).outcome.value, text


def main(
    domains: Annotated[str, typer.Option()] = "code,sql",
    concurrency: Annotated[int, typer.Option(min=1)] = 4,
    steps: Annotated[int | None, typer.Option(help="Draft steps other than the manifest's.")] = None,
    minutes: Annotated[float, typer.Option()] = 8.0,
    max_tokens: Annotated[int, typer.Option()] = 96,
    seed: Annotated[int, typer.Option()] = 0,
    folder: Annotated[Path, typer.Option(help="Emptied first.")] = Path("/tmp/speculator-local-loop"),
) -> None:
    """Run until a version is promoted or the time is up; prints what happens every ten seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target = prepare(print)
    os.environ |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local-secret"}
    store = StoreSettings(bucket="local-loop", prefix="run", endpoint=f"http://127.0.0.1:{S3}", path_style=True)
    policy = write_settings(folder, target, store, steps)
    with programs(folder):
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{ENGINE}/health", timeout=5).is_success:
                    break
            time.sleep(1)
        begun = time.monotonic()
        command = [
            str(Path(sys.executable).parent / "speculator-traffic"), "--url", f"http://127.0.0.1:{ENGINE}",
            "--domains", domains, "--concurrency", str(concurrency), "--duration", str(minutes * 60),
            "--seed", str(seed), "--max-tokens", str(max_tokens), "--tokenizer", str(target),
            "--records", f"{folder}/requests.jsonl", "--summary", f"{folder}/traffic.json",
        ]  # fmt: skip
        with (folder / "traffic.log").open("w") as log:
            traffic = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            watch(Driver(folder, store, policy, steps), folder, begun, minutes * 60)
        finally:
            traffic.send_signal(signal.SIGINT)
            traffic.wait(timeout=60)
    print((folder / "traffic.log").read_text())


def watch(driver: Driver, folder: Path, begun: float, seconds: float) -> None:
    """Try every new version until one is promoted."""
    candidate: VersionRef | None = None
    while (now := time.monotonic() - begun) < seconds:
        time.sleep(10)
        line = f"{now:4.0f} s  {len(read_records(folder / 'requests.jsonl'))} requests; {driver.trainer()}"
        if candidate is None or (latest := driver.latest()) is None:
            candidate = driver.latest()
            if candidate is not None:
                driver.start_trial(candidate)
        else:
            outcome, text = driver.judge(candidate)
            line += f"\n        version {candidate.version} {outcome}: {text}"
            if outcome == "Promote":
                print(line, flush=True)
                return
            if outcome != "Continue" and latest.version > candidate.version:
                candidate = latest
                driver.start_trial(candidate)
        print(line, flush=True)


if __name__ == "__main__":
    typer.run(main)
