"""The gate's error rates and speed, by long simulations: docs/benchmarks/gate.json and the tables in docs/gate.md.

Run by `make gate-table`; takes some minutes on one core. The unit suite runs short versions of the same simulations.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import track
from scipy.stats import t as student

from speculator_operator.gate import (
    AlphaSpending,
    FallbackPolicy,
    GatePolicy,
    Move,
    alpha_of_candidate,
    evaluate,
    judge_holdback,
)
from speculator_operator.gate.confidence import asymptotic_radius, empirical_bernstein_bounds
from speculator_operator.gate.evaluate import compare
from speculator_runtime.contracts.plan import Arm
from support.gate_simulation import Decided, Drafter, World, canary_runs, looks, simulate

ROOT = Path(__file__).parents[2]
STEADY = World()
SHIFTING = World(mix_deviation=1.0)
QUEUEING = World(mix_deviation=1.0, mix_follows_load=3.0)
ROUNDS = 200


def drafter(speedup: float, **changes: float) -> Drafter:
    """A drafter of the same speedup at each bucket."""
    return Drafter((speedup,) * 4, **changes)


@dataclass(frozen=True)
class Null:
    """A candidate just at the bar, in a world."""

    name: str
    world: World
    drafters: tuple[Drafter, ...]
    bar: float = 1.0


NULLS = (
    Null("steady load and batch mix", replace(STEADY, load_deviation=0.05), (drafter(1.0),)),
    Null("load wanders (AR(1), rho 0.9)", STEADY, (drafter(1.0),)),
    Null("load and batch mix wander", SHIFTING, (drafter(1.0),)),
    Null("batches grow when the machine is slow", QUEUEING, (drafter(1.0),)),
    Null("the same, candidate sees larger batches", QUEUEING, (drafter(1.0, mix_shift=0.7),)),
    Null("the same, candidate sees smaller batches", QUEUEING, (drafter(1.0, mix_shift=-0.7),)),
    Null("heavy tails (Student t, 4)", replace(SHIFTING, heavy_tails=True), (drafter(1.0),)),
    Null("as good as the stable drafter, both 1.3", SHIFTING, (drafter(1.3), drafter(1.3))),
    Null("bar at 1.1, drafter at 1.1", SHIFTING, (drafter(1.1),), bar=1.1),
)


def t_test_rate(runs: int, seed: int) -> float:
    """Share of runs that a one-sided 5% t-test, looked at after each pair, promotes at the boundary."""
    simulated = simulate(STEADY, (drafter(1.0),), runs, ROUNDS, seed)
    policy = GatePolicy()
    found = looks(simulated, policy, policy.alpha)
    n = np.arange(1, ROUNDS + 1)
    with np.errstate(invalid="ignore"):
        deviation = (found.mean - found.lower) / asymptotic_radius(n, policy.alpha, policy.tightest_at_pairs)
        radius = deviation * student.ppf(0.95, np.maximum(1, n - 1)) / np.sqrt(n)
    return float(np.mean((found.mean - radius > 0)[:, policy.burn_in_pairs - 1 :].any(axis=1)))


def pairs_of(world: World, speedup: float, runs: int, seed: int) -> NDArray[np.float64]:
    """Differences of log speedup, [runs, rounds], in a world of steady batch mix, where target-only times cancel."""
    simulated = simulate(world, (drafter(speedup),), runs, ROUNDS, seed)
    score = np.log(simulated.tokens.sum(axis=-1))
    return np.asarray(score[:, :, 1] - score[:, :, 0])


def empirical_bernstein_pairs(speedup: float, bound: float, runs: int, seed: int) -> float:
    """Median pairs to promote with the finite-sample bounds; inf: not within the rounds."""
    at = []
    for values in pairs_of(STEADY, speedup, runs, seed):
        hits = (n for n in range(10, ROUNDS + 1) if empirical_bernstein_bounds(values[:n], 0.05, bound).lower > 0)
        at.append(float(next(hits, np.inf)))
    return float(np.median(at))


def fallback_figures(runs: int, seed: int) -> dict[str, Any]:
    """How often a good stable drafter falls back by noise, how soon a bad one does, how soon it returns."""
    policy, gate = FallbackPolicy(), GatePolicy()
    deviation = float(pairs_of(STEADY, 1.0, 200, seed).std())
    rng = np.random.default_rng(seed)
    empty = evaluate([], arm=Arm.STABLE, versions={}, policy=gate, alpha=policy.alpha)
    windowed = gate.model_copy(update={"burn_in_pairs": policy.min_pairs, "tightest_at_pairs": policy.window_pairs})

    def first(values: NDArray[np.float64], fallen_back: bool, wanted: Move, start: int = 0) -> float:
        for n in range(start + 1, len(values) + 1):
            window = values[max(0, n - policy.window_pairs) : n].tolist()
            report = replace(empty, against_target_only=compare(window, windowed, policy.alpha))
            if judge_holdback(report, policy, fallen_back)[0] is wanted:
                return n - start
        return np.inf

    def drawn(*parts: tuple[float, int]) -> NDArray[np.float64]:
        means = np.concatenate([np.full(count, np.log(speedup)) for speedup, count in parts])
        return means + deviation * rng.standard_normal(len(means))

    def median_of(fallen_back: bool, wanted: Move, start: int, *parts: tuple[float, int]) -> float:
        return float(np.median([first(drawn(*parts), fallen_back, wanted, start) for _ in range(runs)]))

    return {
        "pair_deviation": round(deviation, 4),
        "false_fallbacks_within_200_pairs": {
            str(speedup): float(
                np.mean([np.isfinite(first(drawn((speedup, 200)), False, Move.DOWN)) for _ in range(runs)])
            )
            for speedup in (1.05, 1.1, 1.2)
        },
        "median_pairs_to_fall_back": {
            "1.2 to 0.95": median_of(False, Move.DOWN, 30, (1.2, 30), (0.95, 200)),
            "1.2 to 0.9": median_of(False, Move.DOWN, 30, (1.2, 30), (0.9, 200)),
            "1.2 to 0.7": median_of(False, Move.DOWN, 30, (1.2, 30), (0.7, 200)),
        },
        "median_pairs_to_recover": {
            "1.2": median_of(True, Move.UP, 0, (1.2, 200)),
            "1.3": median_of(True, Move.UP, 0, (1.3, 200)),
        },
    }


def finite(number: float) -> float | None:
    """None for what did not happen within the rounds."""
    return None if np.isinf(number) else number


def power_rows(runs: int, seed: int) -> Iterator[dict[str, Any]]:
    """Median pairs to a decision by speedup and noise."""
    for scale in (0.5, 1.0, 2.0):
        world = replace(
            SHIFTING,
            load_deviation=STEADY.load_deviation * scale,
            noise_deviation=STEADY.noise_deviation * scale,
            bucket_noise=STEADY.bucket_noise * scale,
        )
        for speedup in (0.9, 1.05, 1.1, 1.2):
            decided: Decided = canary_runs(world, (drafter(speedup),), runs, seed, rounds=ROUNDS)
            slower = speedup < 1
            yield {
                "noise": scale,
                "speedup": speedup,
                "decision": "rejected" if slower else "promoted",
                "share": decided.rejected if slower else decided.promoted,
                "median_pairs": finite(decided.median_rejected_at if slower else decided.median_promoted_at),
            }


def measure(runs: int, seed: int) -> dict[str, Any]:
    """Everything that the tables show."""
    policy = GatePolicy()
    nulls = []
    for case in track(NULLS, description="at the bar"):
        at_bar = GatePolicy(min_speedup_target_only=case.bar)
        decided = canary_runs(case.world, case.drafters, runs, seed, policy=at_bar, rounds=ROUNDS)
        nulls.append({"world": case.name, "promoted": decided.promoted, "rejected": decided.rejected})
    faster = canary_runs(SHIFTING, (drafter(1.1),), 1000, seed + 1, rounds=ROUNDS)
    slower = canary_runs(SHIFTING, (drafter(0.9),), 1000, seed + 2, rounds=ROUNDS)
    fooled = canary_runs(QUEUEING, (drafter(1.0, mix_shift=0.7),), 1000, seed, rounds=ROUNDS, plain_sums=True)
    decreasing = GatePolicy(spending=AlphaSpending.DECREASING)
    return {
        "alpha": policy.alpha,
        "runs": runs,
        "rounds": ROUNDS,
        "false_promotion_rate_worst": max(row["promoted"] for row in nulls),
        "false_promotion_standard_error": round(float(np.sqrt(0.05 * 0.95 / runs)), 4),
        "median_pairs_to_promote_10_percent": finite(faster.median_promoted_at),
        "slower_10_percent_promoted": int((slower.promoted_at > 0).sum()),
        "slower_10_percent_runs": len(slower.promoted_at),
        "slower_10_percent_median_pairs_to_reject": finite(slower.median_rejected_at),
        "at_the_bar": nulls,
        "for_comparison": {
            "t_test_after_each_pair": t_test_rate(1000, seed),
            "plain_sums_of_time_when_candidate_sees_larger_batches": fooled.promoted,
        },
        "power": list(track(power_rows(400, seed + 3), total=12, description="power")),
        "decreasing_alpha": [
            {
                "candidate": k,
                "alpha": alpha_of_candidate(decreasing, k),
                "median_pairs_to_promote_10_percent": finite(
                    canary_runs(
                        SHIFTING, (drafter(1.1),), 400, seed + 4, alpha=alpha_of_candidate(decreasing, k)
                    ).median_promoted_at
                ),
            }
            for k in (1, 5, 20, 100)
        ],
        "empirical_bernstein": {
            "bound": 0.5,
            "median_pairs_to_promote_10_percent": finite(empirical_bernstein_pairs(1.1, 0.5, 60, seed)),
            "median_pairs_to_promote_20_percent": finite(empirical_bernstein_pairs(1.2, 0.5, 60, seed)),
        },
        "fallback": fallback_figures(200, seed + 5),
    }


def tables(found: dict[str, Any]) -> str:
    """The figures as Markdown."""

    def pairs(number: float | None) -> str:
        return f"over {found['rounds']}" if number is None else f"{number:.0f}"

    lines = [
        f"**At the bar** (no faster, no slower; {found['runs']} runs of {found['rounds']} pairs, a look after each; "
        f"alpha {found['alpha']:.0%}, standard error {found['false_promotion_standard_error']:.1%}):",
        "",
        "| world | promoted (false) | rejected |",
        "|---|---|---|",
        *(f"| {row['world']} | {row['promoted']:.1%} | {row['rejected']:.1%} |" for row in found["at_the_bar"]),
        "",
        f"For comparison, in the same simulation: a 5% t-test looked at after each pair promotes "
        f"{found['for_comparison']['t_test_after_each_pair']:.0%}; target-only times by plain sums promote "
        f"{found['for_comparison']['plain_sums_of_time_when_candidate_sees_larger_batches']:.0%} when the candidate "
        "sees larger batches.",
        "",
        "**Pairs to a decision**, median, batch mix wandering (noise 1: load 0.20, block 0.08, bucket 0.05, standard "
        "deviations of the logarithm):",
        "",
        "| noise | 10% slower, rejected | 5% faster | 10% faster | 20% faster |",
        "|---|---|---|---|---|",
    ]
    for noise in sorted({row["noise"] for row in found["power"]}):
        cells = [
            f"{pairs(row['median_pairs'])} ({row['share']:.0%})" for row in found["power"] if row["noise"] == noise
        ]
        lines.append(f"| {noise} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"In brackets: the share decided so within {found['rounds']} pairs. A drafter 10% slower was promoted in "
        f"{found['slower_10_percent_promoted']} of {found['slower_10_percent_runs']} runs.",
        "",
        "Decreasing alpha, 10% faster: "
        + ", ".join(
            f"candidate {row['candidate']} after {pairs(row['median_pairs_to_promote_10_percent'])} pairs"
            for row in found["decreasing_alpha"]
        )
        + ". Empirical Bernstein (differences clipped at 0.5): "
        + f"{pairs(found['empirical_bernstein']['median_pairs_to_promote_10_percent'])} pairs for 10%, "
        + f"{pairs(found['empirical_bernstein']['median_pairs_to_promote_20_percent'])} for 20%.",
        "",
        "**Fallback** (defaults; standard deviation of a pair's difference: "
        f"{found['fallback']['pair_deviation']:.2f}):",
        "",
        "| what | figure |",
        "|---|---|",
        *(
            f"| stable at {speedup}: falls back by noise within 200 holdback pairs | {share:.1%} |"
            for speedup, share in found["fallback"]["false_fallbacks_within_200_pairs"].items()
        ),
        *(
            f"| speedup drops from {change}: pairs until fallback | {pairs(finite(count))} |"
            for change, count in found["fallback"]["median_pairs_to_fall_back"].items()
        ),
        *(
            f"| fallen back, stable at {speedup} again: probe pairs until it returns | {pairs(finite(count))} |"
            for speedup, count in found["fallback"]["median_pairs_to_recover"].items()
        ),
    ]
    return "\n".join(lines)


def main(
    runs: Annotated[int, typer.Option(help="Runs of each world at the bar.")] = 4000,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 1,
) -> None:
    """Run the simulations; write docs/benchmarks/gate.json and the tables of docs/gate.md."""
    found = measure(runs, seed)
    target = ROOT / "docs" / "benchmarks" / "gate.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(found, indent=2) + "\n")
    page = ROOT / "docs" / "gate.md"
    text, count = re.subn(
        r"(<!-- gate-table -->\n).*(\n<!-- /gate-table -->)",
        lambda match: match[1] + tables(found) + match[2],
        page.read_text(),
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"{page} must hold one pair of <!-- gate-table --> markers, found {count}")
    page.write_text(text)


if __name__ == "__main__":
    typer.run(main)
