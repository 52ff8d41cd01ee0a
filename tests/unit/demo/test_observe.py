"""The demo's story: what it takes for a promotion, what is news, and why a run failed."""

import json
from pathlib import Path
from typing import Any

import demo
import pytest
from demo import outputs, plot
from demo.evidence import gate_policy, pair_by_pair
from demo.observe import Reading, Story
from demo.place import parse_exports

from speculator_runtime.contracts.control import BucketCounters
from speculator_runtime.contracts.plan import Arm, Block, VersionRef
from speculator_runtime.traffic.records import Record

BAR = 1.1
CANDIDATE = VersionRef(version=1, sha256="a" * 64)


def speedup(estimate: float, lower: float, upper: float | None, pairs: int) -> dict[str, Any]:
    made: dict[str, Any] = {"estimate": str(estimate), "lower": str(lower), "pairs": pairs}
    return made | ({} if upper is None else {"upper": str(upper)})


def version(number: int, verdict: str | None = None, against: dict[str, Any] | None = None, **status: Any) -> Any:
    fields = {"phase": verdict or "Published", "verdict": verdict, "againstTargetOnly": against, **status}
    return {
        "spec": {"version": number, "trainingStep": 100 * number, "data": {"requestsTotal": 80 * number}},
        "status": {key: value for key, value in fields.items() if value is not None},
    }


def story_of(*readings: tuple[float, dict[str, Any], list[Any]]) -> Story:
    story = Story(bar=BAR, origin=1000.0)
    for at, status, versions in readings:
        story.add(Reading.parse(at, {"status": status}, versions))
    return story


WON = (300.0, {"phase": "Stable", "stable": {"version": 1}}, [version(1, "Promoted", speedup(1.3, 1.12, 1.5, 12))])


def test_a_promotion_counts_when_its_lower_bound_is_above_the_bar() -> None:
    story = story_of((10.0, {"phase": "Learning"}, []), WON)
    assert story.winner is not None
    assert story.winner.version == 1
    assert story.promoted_at == 300.0
    assert story.why_not() == ""


def test_a_promotion_with_a_lower_bound_at_the_bar_does_not_count_and_is_explained() -> None:
    story = story_of((300.0, {}, [version(1, "Promoted", speedup(1.3, 1.1, 1.5, 12))]))
    assert story.winner is None
    assert "its lower bound 1.100 is not above 1.1" in story.why_not()


def test_a_later_verdict_does_not_undo_what_was_shown() -> None:
    story = story_of(WON, (400.0, {}, [version(1, "Fallback", speedup(0.9, 0.8, 0.95, 40))]))
    assert story.promoted_at == 300.0


@pytest.mark.parametrize(
    ("status", "versions", "text"),
    [
        ({"phase": "Learning", "trainer": {"message": "waiting for traces"}}, [], "no version: waiting for traces"),
        ({"candidate": {"version": 2}}, [version(2)], "on trial, before the first look"),
        (
            {"candidate": {"version": 2}, "speedup": speedup(1.2, 1.05, 1.4, 11)},
            [version(2)],
            "version 2 was on trial: 1.20 with a lower bound of 1.05 after 11 pairs",
        ),
        ({}, [version(1, "Rejected", message="slower than target-only")], "ended as Rejected: slower than target-only"),
    ],
)
def test_a_run_that_fails_says_why(status: dict[str, Any], versions: list[Any], text: str) -> None:
    assert text in story_of((600.0, status, versions)).why_not()


def test_news_are_told_once() -> None:
    story = Story(bar=BAR, origin=0.0)
    first = story.add(Reading.parse(1.0, {"status": {"phase": "Learning"}}, [version(1)]))
    assert first == ["phase Learning", "version 1 published at training step 100, learnt from 80 requests"]
    assert story.add(Reading.parse(2.0, {"status": {"phase": "Learning"}}, [version(1)])) == []
    third = story.add(Reading.parse(3.0, {"status": {"phase": "Canary", "candidate": {"version": 1}}}, [version(1)]))
    assert third == ["phase Canary", "version 1 goes on trial"]


def block(index: int, arm: Arm, tokens: int) -> Block:
    """Four seconds of one arm at batch 2: 40 steps, so many tokens."""
    length = tokens // 40
    counters = BucketCounters(steps=40, sequences=80, tokens=tokens, seconds=4.0, accept_histogram={length: 80})
    return Block(
        pod="p", pod_uid="u", generation=2, index=index, round=index // 2, arm=arm,
        version=CANDIDATE if arm is Arm.CANDIDATE else None, started=index * 5.0, seconds=4.0, buckets={2: counters},
    )  # fmt: skip


def test_a_trial_is_told_pair_by_pair_from_its_evidence() -> None:
    blocks = [
        block(i, Arm.CANDIDATE if i % 2 else Arm.TARGET_ONLY, tokens=(160 + i) if i % 2 else 80) for i in range(24)
    ]
    gate = gate_policy(Path(demo.__file__).parent / "manifests" / "syncpolicy.yaml")
    samples = pair_by_pair(blocks, CANDIDATE, gate)
    assert [s.speedup.pairs for s in samples] == list(range(2, 13))
    last = samples[-1].speedup
    assert last.upper is not None
    assert 1.9 < last.lower < last.estimate < last.upper
    story = Story(bar=BAR, origin=0.0, gate=samples)
    story.add(Reading.parse(1.0, {"status": {"candidate": {"version": 1}}}, [version(1)]))
    assert story.trial == last


def records() -> list[Record]:
    return [
        Record(
            id=str(i), domain="sql", started=1000.0 + i * 5, seconds=4.0, ttft=0.2, tpot=0.05, tokens_in=50,
            tokens_out=60, accept_length=1.0 + i / 50, verify_steps=30, prompt_lookup_tokens=59, prompt_lookup_steps=40,
            error="" if i else "HTTP 500: x",
        )
        for i in range(70)
    ]  # fmt: skip


def test_the_summary_has_the_promised_keys_and_the_figures_of_the_verdict() -> None:
    story = story_of((200.0, {}, [version(1)]), WON)
    made = outputs.summary(story, records(), 321.0, 0.05, {"seed": 7})
    assert made["seconds"] == 321.0
    assert (made["requests"], made["failed_requests"], made["promoted"], made["alpha"]) == (70, 1, 1, 0.05)
    (entry,) = made["versions"]
    keys = ("version", "verdict", "accept_length", "speedup", "speedup_lower", "speedup_upper", "pairs")
    assert [entry[key] for key in keys] == [1, "Promoted", None, 1.3, 1.12, 1.5, 12]
    assert made["prompt_lookup_accept_length"] == pytest.approx(59 / 40)
    assert made["after_promotion"]["after_promotion"]["requests"] == 10
    json.dumps(made, allow_nan=False)


def test_a_run_without_promotion_has_null_and_a_reason() -> None:
    made = outputs.summary(story_of((600.0, {}, [version(1)])), [], 600.0, 0.05, {})
    assert made["promoted"] is None
    assert made["why_not"]
    json.dumps(made, allow_nan=False)


@pytest.mark.parametrize("complete", [True, False])
def test_the_plot_is_drawn_with_and_without_versions(tmp_path: Path, complete: bool) -> None:
    story = story_of((5.0, {"candidate": {"version": 1}, "speedup": speedup(1.2, 1.0, 1.4, 10)}, [version(1)]), WON)
    plot.draw(tmp_path / "p.png", story if complete else story_of(), records() if complete else [], "title")
    assert (tmp_path / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_record_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    line = records()[1].model_dump_json()
    (tmp_path / "r.jsonl").write_text(line + "\n" + line[:20])
    assert len(outputs.read_records(tmp_path / "r.jsonl")) == 1


def test_exports_of_the_cluster_are_read_like_a_shell_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    text = "export KUBECONFIG=/a/b\nexport AWS_SECRET_ACCESS_KEY='x y'\nexport PATH=/c/bin:\"$PATH\"\n"
    assert parse_exports(text) == {"KUBECONFIG": "/a/b", "AWS_SECRET_ACCESS_KEY": "x y", "PATH": "/c/bin:/usr/bin"}
