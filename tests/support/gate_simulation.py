"""A Monte Carlo model of a replica under the gate: autocorrelated load, batch mixes that wander, randomised rounds.

Everything is vectorised over runs. The model yields what a block yields (seconds and tokens per batch bucket), and the
score is computed as the gate does, anew at each look, with target-only times estimated from the blocks seen so far.
`as_blocks` turns a run into real blocks: tests hold this file and the gate's own code to the same figures.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from speculator_operator.gate.confidence import MIN_DEVIATION, asymptotic_radius
from speculator_operator.gate.policy import GatePolicy
from speculator_runtime.contracts.control import BucketCounters
from speculator_runtime.contracts.plan import Arm, Block, VersionRef

Array = NDArray[np.float64]

BUCKETS = (1, 2, 4, 8)
STEP_SECONDS = np.array([0.057, 0.064, 0.069, 0.097])
"""Of a target-only step at each bucket: SmolLM2-135M in float32 on one thread, 1, 2, 4, 8 tokens in the step."""
BLOCK_SECONDS = 18.0
"""Counted: a block of 20 s less 2 s of washout."""

CANDIDATE = VersionRef(version=2, sha256="c" * 64)
STABLE = VersionRef(version=1, sha256="b" * 64)


@dataclass(frozen=True)
class World:
    """How a replica behaves.

    Natural logarithms throughout. load: a machine-wide slowdown, AR(1) from block to block with standard deviation
    `load_deviation`. noise: of one block's speed (answers differ in how predictable they are). mix: shares of a
    block's time by bucket; `mix_deviation` 0 keeps them fixed, else their logits wander as AR(1) too;
    `mix_follows_load` makes a slow machine batch more, as queues grow. bucket_noise: of one bucket within one block.
    """

    load_rho: float = 0.9
    load_deviation: float = 0.2
    noise_deviation: float = 0.08
    bucket_noise: float = 0.05
    mix_deviation: float = 0.0
    mix_follows_load: float = 0.0
    heavy_tails: bool = False


@dataclass(frozen=True)
class Drafter:
    """The candidate in this world: speedup over target-only by bucket, and a shift of its mix to larger batches."""

    speedup: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    mix_shift: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """Blocks of many runs: [runs, rounds, arms, buckets] each; arm 0 is target-only, the last the candidate."""

    seconds: Array
    tokens: Array


@dataclass(frozen=True)
class Looks:
    """Bounds of log speedup after each pair. mean, lower, upper: [runs, rounds]; no bound (+-inf) in the burn-in."""

    mean: Array
    lower: Array
    upper: Array


@dataclass(frozen=True)
class Decided:
    """Pairs at which each run was promoted or rejected; 0: it was not. [runs] each."""

    promoted_at: NDArray[np.int64]
    rejected_at: NDArray[np.int64]
    crossed: NDArray[np.bool_] = field(repr=False)
    """The lower bound passed the bar at some look, an earlier rejection notwithstanding."""

    @property
    def promoted(self) -> float:
        """Share of runs."""
        return float(np.mean(self.promoted_at > 0))

    @property
    def rejected(self) -> float:
        """Share of runs."""
        return float(np.mean(self.rejected_at > 0))

    @property
    def median_promoted_at(self) -> float:
        """Median pairs to a promotion, runs that were not promoted counted as later than any."""
        return _median(self.promoted_at)

    @property
    def median_rejected_at(self) -> float:
        """Median pairs to a rejection, runs that were not rejected counted as later than any."""
        return _median(self.rejected_at)


def _median(at: NDArray[np.int64]) -> float:
    return float(np.median(np.where(at > 0, at, np.inf)))


def _normal(rng: np.random.Generator, shape: tuple[int, ...], heavy_tails: bool) -> Array:
    """Unit variance: normal, or Student's t with 4 degrees of freedom."""
    return rng.standard_t(4, shape) / np.sqrt(2) if heavy_tails else rng.standard_normal(shape)


def ar1(rng: np.random.Generator, shape: tuple[int, ...], rho: float, heavy_tails: bool = False) -> Array:
    """Stationary AR(1) of unit variance along the last axis."""
    steps = _normal(rng, shape, heavy_tails)
    out = np.empty(shape)
    out[..., 0] = steps[..., 0]
    scale = np.sqrt(1 - rho**2)
    for index in range(1, shape[-1]):
        out[..., index] = rho * out[..., index - 1] + scale * steps[..., index]
    return out


def simulate(
    world: World, drafters: tuple[Drafter, ...], runs: int, rounds: int, seed: int, randomised: bool = True
) -> Simulated:
    """Rounds of target-only and each drafter, in an order drawn anew for each round."""
    rng = np.random.default_rng(seed)
    arms = 1 + len(drafters)
    slots = rounds * arms
    load = world.load_deviation * ar1(rng, (runs, slots), world.load_rho, world.heavy_tails)
    wander = ar1(rng, (runs, len(BUCKETS), slots), world.load_rho)
    order = np.argsort(rng.random((runs, rounds, arms)), axis=-1) if randomised else np.arange(arms)
    order = np.broadcast_to(order, (runs, rounds, arms))

    def by_arm(per_slot: Array) -> Array:
        return np.take_along_axis(per_slot.reshape(runs, rounds, arms), order, axis=-1)

    load_by_arm = by_arm(load)
    logits = world.mix_deviation * np.stack([by_arm(wander[:, b]) for b in range(len(BUCKETS))], axis=-1)
    size = np.linspace(-1, 1, len(BUCKETS))
    logits = logits + world.mix_follows_load * load_by_arm[..., None] * size
    for index, drafter in enumerate(drafters, start=1):
        logits[:, :, index] += drafter.mix_shift * size
    shares = np.exp(logits)
    seconds = BLOCK_SECONDS * shares / shares.sum(axis=-1, keepdims=True)
    slowdown = np.exp(
        (load_by_arm + world.noise_deviation * _normal(rng, load_by_arm.shape, world.heavy_tails))[..., None]
        + world.bucket_noise * _normal(rng, seconds.shape, world.heavy_tails)
    )
    speed = np.array([(1.0,) * len(BUCKETS), *(drafter.speedup for drafter in drafters)])
    tokens = seconds / (STEP_SECONDS / np.array(BUCKETS)) / slowdown * speed
    return Simulated(seconds, tokens)


def looks(simulated: Simulated, policy: GatePolicy, alpha: float, other: int = 0, plain_sums: bool = False) -> Looks:
    """Bounds of the last arm against arm `other` after each round, all scored anew at each look.

    plain_sums: target-only times by plain sums, as the gate does NOT do it; see `gate.blocks.fit_times`.
    """
    runs, rounds = simulated.seconds.shape[:2]
    tested = [simulated.tokens[:, :, -1], simulated.tokens[:, :, other]]
    taken = [np.log(simulated.seconds[:, :, arm].sum(axis=-1)) for arm in (-1, other)]
    own = (simulated.seconds[:, :, 0], simulated.tokens[:, :, 0])
    times = np.ones((runs, len(BUCKETS)))
    mean = np.zeros((runs, rounds))
    lower = np.full((runs, rounds), -np.inf)
    upper = np.full((runs, rounds), np.inf)
    radius = asymptotic_radius(np.arange(1, rounds + 1), alpha, policy.tightest_at_pairs)
    for count in range(policy.burn_in_pairs, rounds + 1):
        if plain_sums:
            times = own[0][:, :count].sum(axis=1) / own[1][:, :count].sum(axis=1)
        else:
            sweeps = 20 if count == policy.burn_in_pairs else 2
            times = _refined(own[0][:, :count], own[1][:, :count], times, sweeps)
        now = times[..., None]
        scores = [
            np.log((tokens[:, :count] @ now)[..., 0]) - seconds[:, :count]
            for tokens, seconds in zip(tested, taken, strict=True)
        ]
        differences = scores[0] - scores[1]
        centre = differences.mean(axis=1)
        reach = np.maximum(differences.std(axis=1, ddof=1), MIN_DEVIATION) * radius[count - 1]
        mean[:, count - 1] = centre
        lower[:, count - 1] = centre - reach
        upper[:, count - 1] = centre + reach
    return Looks(mean, lower, upper)


def _refined(seconds: Array, tokens: Array, times: Array, sweeps: int) -> Array:
    """Sweeps of `gate.blocks.fit_times`, for [runs, rounds, buckets], from the times of the last look.

    From there two are as good as settled, and quick enough for thousands of runs.
    """
    for _ in range(sweeps):
        load = seconds.sum(axis=2) / (tokens @ times[..., None])[..., 0]
        times = seconds.sum(axis=1) / (load[:, None] @ tokens)[:, 0]
    return times


def decide_runs(against: tuple[tuple[Looks, float], ...]) -> Decided:
    """Look after each round: promote when all lower bounds pass their bars, reject when an upper bound is below one.

    against: bounds with the bar (a ratio) of each comparison.
    """
    above = np.logical_and.reduce([look.lower > np.log(bar) for look, bar in against])
    below = np.logical_or.reduce([look.upper < np.log(bar) for look, bar in against])
    first_above, first_below = _first(above), _first(below)
    never = above.shape[1] + 1
    up = np.where(first_above > 0, first_above, never)
    down = np.where(first_below > 0, first_below, never)
    return Decided(
        promoted_at=np.where(up < down, first_above, 0),
        rejected_at=np.where(down <= up, first_below, 0),
        crossed=above.any(axis=1),
    )


def _first(hits: NDArray[np.bool_]) -> NDArray[np.int64]:
    """1-based index of the first hit along the last axis; 0: none."""
    return np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, 0)


def canary_runs(
    world: World,
    drafters: tuple[Drafter, ...],
    runs: int,
    seed: int,
    policy: GatePolicy | None = None,
    alpha: float | None = None,
    rounds: int = 200,
    plain_sums: bool = False,
) -> Decided:
    """Whole canaries, candidate last in `drafters`; with two drafters the first is the stable one."""
    policy = policy or GatePolicy()
    parts = []
    for start in range(0, runs, 500):
        simulated = simulate(world, drafters, min(500, runs - start), rounds, seed + start)
        level = alpha or policy.alpha
        against = [(looks(simulated, policy, level, plain_sums=plain_sums), policy.min_speedup_target_only)]
        if len(drafters) > 1:
            against.append((looks(simulated, policy, level, other=1), policy.min_speedup_stable))
        parts.append(decide_runs(tuple(against)))
    return Decided(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("promoted_at", "rejected_at", "crossed"))
    )


def as_blocks(simulated: Simulated, run: int, rounds: int) -> list[Block]:
    """One run's blocks as an agent would report them, rounded to whole tokens; ordered round by round."""
    arms = (Arm.TARGET_ONLY, Arm.CANDIDATE) if simulated.seconds.shape[2] == 2 else tuple(Arm)
    versions = {Arm.TARGET_ONLY: None, Arm.STABLE: STABLE, Arm.CANDIDATE: CANDIDATE}
    blocks = []
    for turn in range(rounds):
        for position, arm in enumerate(arms):
            buckets = {}
            for place, bucket in enumerate(BUCKETS):
                tokens = round(float(simulated.tokens[run, turn, position, place]))
                sequences = tokens if arm is Arm.TARGET_ONLY else max(1, round(tokens / 1.5))
                buckets[bucket] = BucketCounters(
                    steps=max(1, sequences // bucket),
                    sequences=sequences,
                    tokens=tokens,
                    seconds=float(simulated.seconds[run, turn, position, place]),
                )
            blocks.append(
                Block(
                    pod="demo-engine-0",
                    pod_uid="uid-0",
                    generation=1,
                    index=turn * len(arms) + position,
                    round=turn,
                    arm=arm,
                    version=versions[arm],
                    started=1e9 + 20.0 * (turn * len(arms) + position),
                    seconds=BLOCK_SECONDS,
                    buckets=buckets,
                )
            )
    return blocks
