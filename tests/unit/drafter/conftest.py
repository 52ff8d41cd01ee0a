import pytest
import torch

from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.drafter.model import Eagle3Drafter


@pytest.fixture
def config() -> DrafterConfig:
    return DrafterConfig(
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        vocab_size=50,
        draft_vocab_size=20,
        capture_layers=(0, 1, 2),
    )


@pytest.fixture
def drafter(config: DrafterConfig) -> Eagle3Drafter:
    """A drafter in float64 with all slots used, weights large enough that attention matters."""
    drafter = Eagle3Drafter(config)
    drafter.reset(seed=3)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.mul_(10.0 if parameter.dim() > 1 else 1.3)
    return drafter.double()
