"""The learning rate by step, and the guard that keeps a bad update out. Pure."""

import math
from dataclasses import dataclass

from speculator_runtime.contracts.settings import TrainingConfig

_SETTLE_STEPS = 20
_AVERAGE_DECAY = 0.95
EXPLODING_RATIO = 30.0
"""A gradient norm this many times its running average is not applied."""


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Rate of update `step` (0 is the first): linear warm-up, then constant, or cosine to final_learning_rate.

    The cosine runs over decay_steps after the warm-up and stays at its end; without decay_steps the rate is constant.
    """
    peak = config.learning_rate
    if step < config.warmup_steps:
        return peak * (step + 1) / (config.warmup_steps + 1)
    if config.final_learning_rate is None or config.decay_steps is None:
        return peak
    progress = min(1.0, (step - config.warmup_steps) / config.decay_steps)
    return config.final_learning_rate + (peak - config.final_learning_rate) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass
class UpdateGuard:
    """Decides whether an update is applied: finite, and not far above what gradient norms have been."""

    average: float = 0.0  # running mean of applied gradient norms, before clipping
    applied: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0

    def admit(self, loss: float, norm: float) -> bool:
        """Whether to apply an update of this loss and gradient norm; counts either way."""
        good = math.isfinite(loss) and math.isfinite(norm)
        if good and self.applied >= _SETTLE_STEPS and norm > EXPLODING_RATIO * self.average:
            good = False
        if not good:
            self.skipped += 1
            self.skipped_in_a_row += 1
            return False
        weight = _AVERAGE_DECAY if self.applied >= _SETTLE_STEPS else self.applied / (self.applied + 1)
        self.average = weight * self.average + (1 - weight) * norm
        self.applied += 1
        self.skipped_in_a_row = 0
        return True
