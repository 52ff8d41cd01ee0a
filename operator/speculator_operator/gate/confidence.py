"""One-sided confidence sequences for a mean: bounds that hold at all times at once, so that looking is free.

Asymptotic: the one-sided normal mixture of Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, "Time-uniform central limit
theory and asymptotic confidence sequences" (arXiv 2103.06476).
Empirical Bernstein: the predictable plug-in of Waudby-Smith and Ramdas, "Estimating means of bounded random variables
by betting" (arXiv 2010.09686, theorem 2), one-sided: log(1 / alpha) in place of log(2 / alpha).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_DEVIATION = 1e-3
"""Floor of the standard deviation of a log-speedup difference: a clock's grain. Pairs that are all alike (a frozen
counter, a simulated engine) must not make an infinitely sure decision."""


@dataclass(frozen=True)
class Bounds:
    """Lower and upper bound of a mean, each at its own alpha."""

    lower: float
    upper: float
    clipped: int = 0


def mixture_rho_squared(alpha: float, tightest_at: float) -> float:
    """rho^2 that makes the one-sided asymptotic bound tightest after so many observations; alpha below 0.5."""
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must be between 0 and 0.5, got {alpha}")
    spent = -2 * np.log(2 * alpha)
    return float((spent + np.log1p(spent)) / tightest_at)


def asymptotic_radius(n: ArrayLike, alpha: float, tightest_at: float) -> NDArray[np.float64]:
    """Distance of the bound from the mean after n observations, in standard deviations of one observation.

    sqrt( 2 (n rho^2 + 1) / (n^2 rho^2) ln(1 + sqrt(n rho^2 + 1) / (2 alpha)) ), shape of n.
    """
    count = np.asarray(n, dtype=np.float64)
    rho2 = mixture_rho_squared(alpha, tightest_at)
    spread = count * rho2 + 1
    return np.asarray(np.sqrt(2 * spread / (count**2 * rho2) * np.log1p(np.sqrt(spread) / (2 * alpha))))


def asymptotic_bounds(values: NDArray[np.float64], alpha: float, tightest_at: float) -> Bounds:
    """Bounds of the mean of values [n], n >= 2. Valid asymptotically: use it after a burn-in."""
    deviation = max(float(np.std(values, ddof=1)), MIN_DEVIATION)
    radius = deviation * float(asymptotic_radius(len(values), alpha, tightest_at))
    mean = float(np.mean(values))
    return Bounds(mean - radius, mean + radius)


def empirical_bernstein_bounds(values: NDArray[np.float64], alpha: float, bound: float) -> Bounds:
    """Bounds of the mean of values [n] clipped to [-bound, bound]; they hold for every n, not only in the limit.

    The guarantee is about the mean of the clipped values, taken in the order given.
    """
    clipped = int(np.count_nonzero(np.abs(values) > bound))
    unit = (np.clip(values, -bound, bound) + bound) / (2 * bound)
    steps = np.arange(1, len(unit) + 1)
    mean = (0.5 + np.cumsum(unit)) / (steps + 1)
    variance = (0.25 + np.cumsum((unit - mean) ** 2)) / (steps + 1)
    mean_before = np.concatenate(([0.5], mean[:-1]))
    variance_before = np.concatenate(([0.25], variance[:-1]))
    bet = np.minimum(0.5, np.sqrt(2 * np.log(1 / alpha) / (variance_before * steps * np.log1p(steps))))
    excess = 4 * (unit - mean_before) ** 2 * (-np.log1p(-bet) - bet) / 4
    total = float(np.sum(bet))
    centre = float(np.sum(bet * unit)) / total
    radius = (float(np.log(1 / alpha)) + float(np.sum(excess))) / total

    def back(share: float) -> float:
        return (min(1.0, max(0.0, share)) * 2 - 1) * bound

    return Bounds(back(centre - radius), back(centre + radius), clipped)
