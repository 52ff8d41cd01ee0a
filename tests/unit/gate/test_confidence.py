"""The bounds: formula, always-validity, and what each method promises."""

import math

import numpy as np
import pytest

from speculator_operator.gate.confidence import (
    MIN_DEVIATION,
    asymptotic_bounds,
    asymptotic_radius,
    empirical_bernstein_bounds,
    mixture_rho_squared,
)
from speculator_operator.gate.policy import AlphaSpending, GatePolicy
from speculator_operator.gate.spending import alpha_of_candidate, expected_false_promotions


class TestAsymptotic:
    def test_the_radius_is_the_published_formula(self) -> None:
        n, alpha, best = 30, 0.05, 30
        rho2 = (-2 * math.log(2 * alpha) + math.log(1 - 2 * math.log(2 * alpha))) / best
        spread = n * rho2 + 1
        expected = math.sqrt(2 * spread / (n**2 * rho2) * math.log(1 + math.sqrt(spread) / (2 * alpha)))
        assert mixture_rho_squared(alpha, best) == pytest.approx(rho2)
        assert float(asymptotic_radius(n, alpha, best)) == pytest.approx(expected)

    def test_it_is_tightest_near_the_chosen_number_of_pairs(self) -> None:
        """Of all choices of rho, the one made for 30 pairs gives (nearly) the smallest radius at 30 pairs."""
        at_30 = {best: float(asymptotic_radius(30, 0.05, best)) for best in (5, 10, 30, 60, 120)}
        assert at_30[30] == pytest.approx(min(at_30.values()), rel=0.01)

    def test_lower_and_upper_are_symmetric_about_the_mean(self) -> None:
        values = np.array([0.1, 0.2, 0.0, 0.3, 0.15])
        bounds = asymptotic_bounds(values, 0.05, 30)
        assert bounds.lower + bounds.upper == pytest.approx(2 * values.mean())
        assert bounds.lower < values.mean()

    def test_pairs_that_are_all_alike_are_not_infinitely_sure(self) -> None:
        bounds = asymptotic_bounds(np.full(20, 0.1), 0.05, 30)
        assert 0.1 - bounds.lower == pytest.approx(MIN_DEVIATION * float(asymptotic_radius(20, 0.05, 30)))

    @pytest.mark.parametrize("alpha", [0.0, 0.5, 0.7, -1.0])
    def test_an_alpha_it_cannot_hold_is_refused(self, alpha: float) -> None:
        with pytest.raises(ValueError, match="alpha"):
            mixture_rho_squared(alpha, 30)

    def test_a_mean_of_zero_is_seldom_excluded_at_any_look(self) -> None:
        rng = np.random.default_rng(3)
        values = rng.standard_normal((2000, 200))
        n = np.arange(1, 201)
        mean = np.cumsum(values, axis=1) / n
        variance = np.cumsum(values**2, axis=1) / n - mean**2
        deviation = np.sqrt(variance[:, 9:] * n[9:] / (n[9:] - 1))
        crossed = (mean[:, 9:] - deviation * asymptotic_radius(n[9:], 0.05, 30) > 0).any(axis=1)
        assert 0.005 < crossed.mean() < 0.05


class TestEmpiricalBernstein:
    def test_a_mean_of_zero_is_never_excluded_more_often_than_alpha(self) -> None:
        rng = np.random.default_rng(5)
        excluded = 0
        for _ in range(300):
            values = rng.choice([-0.5, 0.5], size=60)
            excluded += any(empirical_bernstein_bounds(values[:n], 0.05, 0.5).lower > 0 for n in range(2, 61))
        assert excluded <= 0.05 * 300

    def test_it_closes_in_on_the_mean(self) -> None:
        rng = np.random.default_rng(6)
        values = rng.normal(0.2, 0.05, size=400)
        few, many = (empirical_bernstein_bounds(values[:n], 0.05, 0.5) for n in (40, 400))
        assert few.lower < many.lower < 0.2 < many.upper < few.upper

    def test_pairs_beyond_the_bound_are_clipped_and_counted(self) -> None:
        bounds = empirical_bernstein_bounds(np.array([0.1, 9.0, -9.0, 0.2]), 0.05, 0.5)
        assert bounds.clipped == 2
        assert -0.5 <= bounds.lower <= bounds.upper <= 0.5


class TestSpending:
    def test_per_candidate_spends_the_same_each_time_and_says_what_that_adds_up_to(self) -> None:
        policy = GatePolicy(alpha=0.05)
        assert [alpha_of_candidate(policy, k) for k in (1, 2, 50)] == [0.05] * 3
        assert expected_false_promotions(policy, 100) == pytest.approx(5.0)

    def test_decreasing_never_spends_more_than_alpha_in_all(self) -> None:
        policy = GatePolicy(alpha=0.05, spending=AlphaSpending.DECREASING)
        assert alpha_of_candidate(policy, 1) == pytest.approx(6 * 0.05 / math.pi**2)
        assert alpha_of_candidate(policy, 3) == pytest.approx(alpha_of_candidate(policy, 1) / 9)
        assert 0.0495 < expected_false_promotions(policy, 1000) < 0.05

    def test_candidates_are_counted_from_one(self) -> None:
        with pytest.raises(ValueError, match="counts from 1"):
            alpha_of_candidate(GatePolicy(), 0)


def test_a_policy_whose_cap_comes_before_the_burn_in_ends_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_pairs \(10\) must be above burn_in_pairs \(20\)"):
        GatePolicy(max_pairs=10, burn_in_pairs=20)
