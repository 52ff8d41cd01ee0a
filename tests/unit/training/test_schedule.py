import math

import pytest

from speculator_runtime.contracts.settings import TrainingConfig
from speculator_runtime.training.schedule import UpdateGuard, learning_rate


def test_the_rate_rises_linearly_and_then_stays():
    config = TrainingConfig(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(config, step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_the_cosine_ends_at_the_final_rate_and_stays_there():
    config = TrainingConfig(learning_rate=1.0, final_learning_rate=0.2, decay_steps=10, warmup_steps=2)
    assert learning_rate(config, 2) == pytest.approx(1.0)
    assert learning_rate(config, 7) == pytest.approx(0.6)
    assert learning_rate(config, 12) == learning_rate(config, 500) == pytest.approx(0.2)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.nan), (1.0, math.inf), (math.inf, 1.0)])
def test_what_is_not_finite_is_never_applied(loss, norm):
    guard = UpdateGuard()
    assert not guard.admit(loss, norm)
    assert (guard.applied, guard.skipped) == (0, 1)


def test_an_exploding_norm_is_skipped_once_norms_have_settled():
    guard = UpdateGuard()
    assert guard.admit(1.0, 1.0)
    assert guard.admit(1.0, 1000.0), "early norms vary: nothing to compare with yet"
    for _ in range(100):
        assert guard.admit(1.0, 1.0)
    assert not guard.admit(1.0, 1000.0)
    assert guard.admit(1.0, 2.0)
    assert (guard.skipped, guard.skipped_in_a_row) == (1, 0)
