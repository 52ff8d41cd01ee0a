"""The demo's command: set up, install, serve, learn, measure, promote, show. `hack/demo/run --help`."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated

import typer
import yaml
from rich.console import Console

from . import objectstore, outputs, plot
from .evidence import Evidence, gate_policy
from .kube import Kube, resolved_manifests
from .observe import Reading, Story
from .place import REPOSITORY, Place, existing, existing_place, local_place
from .shell import DemoError
from .target import NAME as TARGET_NAME
from .target import TargetError, cache_directory, prepare
from .view import View, interval

SPECULATOR, NAMESPACE, BUCKET, SECRET = "demo", "speculator-demo", "speculator-demo", "demo-s3"
MANIFESTS = Path(__file__).parent / "manifests"
BAR = 1.1
"""The lower bound of speedup over target-only that the demo wants to see."""

EVIDENCE_SECONDS = 5.0
"""Between two looks at the evidence in the bucket."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def draft_steps() -> int:
    """Length of the drafter's chain in the manifests: prompt lookup is counted with the same."""
    spec = yaml.safe_load((MANIFESTS / "speculator.yaml").read_text())["spec"]
    return int(spec["drafter"]["steps"])


def only_one(console: Console) -> IO[str]:
    """Hold the lock of this machine's demo; exits when another demo holds it."""
    path = cache_directory() / "demo.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        console.print("demo: another demo is running on this machine; wait for it to end", style="red")
        raise typer.Exit(1) from error
    return file


class Demo:
    """One run; the steps are called in order by `main`."""

    def __init__(self, console: Console, output: Path, minutes: float) -> None:
        self.console, self.out = console, output
        self.origin = time.time()
        self.deadline = self.origin + minutes * 60
        self.gate = gate_policy(MANIFESTS / "syncpolicy.yaml")
        self.story = Story(bar=BAR, origin=self.origin, burn_in=self.gate.burn_in_pairs)
        self.prefix = "runs/" + datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.records = output / "requests.jsonl"
        self.log = output / "commands.log"

    @property
    def at(self) -> float:
        """Seconds since the demo began."""
        return time.time() - self.origin

    def say(self, text: str) -> None:
        """A line with the time."""
        self.console.print(f"[{self.at:4.0f} s] {text}", markup=False, highlight=False, soft_wrap=True)

    def set_up(self) -> tuple[Place, Kube]:
        """Cluster, images, target in the bucket, operator installed."""
        place = existing_place() if existing() else local_place()
        self.say(f"target: {TARGET_NAME}")
        target = prepare(self.say)
        store = objectstore.client_of(place.s3)
        objectstore.ensure_bucket(store, BUCKET)
        objectstore.Bucket(store, BUCKET).upload_directory(f"models/{TARGET_NAME}", target, self.say)
        kube = Kube(place, NAMESPACE, self.log)
        self.say("helm install charts/speculator-operator")
        kube.install()
        kube.ensure_namespace()
        kube.ensure_credentials(SECRET)
        return place, kube

    def apply(self, place: Place, kube: Kube) -> None:
        """kubectl apply of the manifests, each run with a ledger of its own; waits for Ready."""
        if kube.speculator(SPECULATOR):
            self.say(f"deleting the Speculator {SPECULATOR} of an earlier run; its ledger stays")
            kube.delete(SPECULATOR)
        resolved_manifests(MANIFESTS, self.out / "manifests", BUCKET, self.prefix, place)
        self.say(f"kubectl apply -f {self.out / 'manifests'} (ledger: s3://{BUCKET}/{self.prefix})")
        kube.apply(self.out / "manifests")
        kube.wait_ready(SPECULATOR, 180, self.say)
        self.say("Ready: requests are served, target-only")

    @contextlib.contextmanager
    def traffic(self, place: Place, kube: Kube, domains: str, concurrency: int, seed: int) -> Iterator[None]:
        """speculator-traffic in a process of its own, through the Service, until the block ends."""
        forward = None
        if place.local:
            url = kube.service_url(SPECULATOR)
        else:
            forward, url = kube.port_forward(SPECULATOR, self.log)
        command = [
            str(Path(sys.executable).parent / "speculator-traffic"), "--url", url, "--domains", domains,
            "--concurrency", str(concurrency), "--seed", str(seed), "--duration", "3600", "--max-tokens", "96",
            "--tokenizer", str(prepare(self.say)), "--draft-tokens", str(draft_steps()),
            "--records", str(self.records), "--summary", str(self.out / "traffic.json"),
        ]  # fmt: skip
        self.say(f"traffic through {url}: {domains}, {concurrency} at a time")
        with (self.out / "traffic.log").open("w") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
            )  # fmt: skip
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
            if forward is not None:
                forward.terminate()
                forward.wait(timeout=10)
        if process.returncode == 2:
            raise DemoError("traffic could not start: " + (self.out / "traffic.log").read_text().strip()[-500:])

    def watch(self, place: Place, kube: Kube, after_seconds: float) -> None:
        """Read and show until a version is promoted above the bar and has served a while, or time is up."""
        evidence, read_evidence = Evidence(place.s3, BUCKET, self.prefix, self.gate), 0.0
        with View(self.console) as view:
            while time.time() < self.deadline:
                began = time.monotonic()
                seen = kube.read(SPECULATOR)
                if seen is not None:
                    reading = Reading.parse(self.at, *seen)
                    if reading.versions and self.at - read_evidence >= EVIDENCE_SECONDS:
                        read_evidence = self.at
                        self.story.gate = evidence.samples(v.version for v in reading.versions)
                    news = self.story.add(reading)
                    view.show(self.story, outputs.read_records(self.records), news)
                promoted = self.story.promoted_at
                if promoted is not None and self.at - promoted >= after_seconds:
                    return
                time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    def leave_behind(self, settings: dict[str, object]) -> dict[str, object]:
        """summary.json, versions.json and plot.png."""
        records = outputs.read_records(self.records)
        cancelled = json.loads((self.out / "traffic.json").read_text())["cancelled_requests"]
        summary = outputs.summary(self.story, records, self.at, self.gate.alpha, settings, cancelled)
        outputs.write_json(self.out / "summary.json", summary)
        outputs.write_json(self.out / "versions.json", summary["versions"])
        plot.draw(self.out / "plot.png", self.story, records, f"Speculator demo, SmolLM2-135M, {settings['domains']}")
        return summary


@app.command()
def main(
    domains: Annotated[str, typer.Option(help="Domains of the built-in prompts.")] = "code,sql",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests kept in flight.")] = 2,
    minutes: Annotated[float, typer.Option(help="Give up after so long.")] = 10.0,
    after: Annotated[float, typer.Option(help="Seconds of serving to show after the promotion.")] = 30.0,
    seed: Annotated[int | None, typer.Option(help="Of the traffic; by default another one each run.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the Speculator running.")] = False,
    output: Annotated[Path, typer.Option(help="Where summary, plot and logs go.")] = REPOSITORY / "demo-output",
) -> None:
    """Run the closed loop on a real cluster. Exit status 0 only if a version was promoted above the bar."""
    console = Console()
    lock = only_one(console)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    demo = Demo(console, output, minutes)
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    kube = None
    try:
        place, kube = demo.set_up()
        demo.apply(place, kube)
        with demo.traffic(place, kube, domains, concurrency, chosen):
            demo.watch(place, kube, after)
        settings: dict[str, object] = {
            "target": TARGET_NAME, "domains": domains, "concurrency": concurrency, "seed": chosen, "max_tokens": 96,
            "temperature": 0.0, "prefix_cache": "none",
        }  # fmt: skip
        summary = demo.leave_behind(settings)
        kube.collect(SPECULATOR, output)
        if not keep:
            left = kube.delete(SPECULATOR)
            demo.say(
                f"kubectl delete speculator {SPECULATOR}: " + (f"still there: {left}" if left else "nothing is left")
            )
    except (DemoError, TargetError) as error:
        console.print(f"demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        if kube is not None:
            kube.collect(SPECULATOR, output)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        console.print(f"interrupted; the Speculator stays: kubectl delete speculator {SPECULATOR} -n {NAMESPACE}")
        raise typer.Exit(130) from error
    finally:
        lock.close()
    conclude(demo, summary)


def conclude(demo: Demo, summary: dict[str, object]) -> None:
    """The last lines, and the exit status."""
    winner = demo.story.winner
    demo.say(f"left behind: {demo.out}/summary.json, plot.png, versions.json, requests.jsonl, logs")
    lookup = summary["prompt_lookup_accept_length"]
    if winner is None:
        demo.say(f"NOT PROMOTED: {summary['why_not']}")
        raise typer.Exit(1)
    length = "" if winner.accept_length is None else f", accept length {winner.accept_length:.2f}"
    demo.say(f"PROMOTED: version {winner.version}, speedup{interval(winner.speedup)}{length}")
    if isinstance(lookup, float):
        demo.say(f"for comparison, training-free prompt lookup would have had an accept length of {lookup:.2f}")
    demo.console.print_json(json.dumps(summary["after_promotion"]))


if __name__ == "__main__":
    app()
