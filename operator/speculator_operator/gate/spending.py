"""Error spending over the candidates of a lineage."""

import math

from .policy import AlphaSpending, GatePolicy


def alpha_of_candidate(policy: GatePolicy, ordinal: int) -> float:
    """Alpha that candidate k (1 is the first) may spend.

    Decreasing: alpha_k = 6 alpha / (pi^2 k^2), whose sum over all k is alpha.
    """
    if ordinal < 1:
        raise ValueError(f"ordinal counts from 1, got {ordinal}")
    if policy.spending is AlphaSpending.DECREASING:
        return 6 * policy.alpha / (math.pi * ordinal) ** 2
    return policy.alpha


def expected_false_promotions(policy: GatePolicy, candidates: int) -> float:
    """Upper bound of the expected number of promotions among so many candidates that are all just at the bar."""
    return sum(alpha_of_candidate(policy, k) for k in range(1, candidates + 1))
