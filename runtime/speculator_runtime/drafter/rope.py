"""Rotary position embedding as the target has it (theta, and the static scalings linear, llama3 and yarn)."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from .config import DrafterConfig


class Rotary(nn.Module):
    """cos and sin by position, computed in float32 as Llama does; no parameters, nothing in a checkpoint."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        inverse, self._scale = inverse_frequencies(config)
        # Not a buffer: a cast of the module to bfloat16 must leave the frequencies alone.
        self._inverse = {torch.device("cpu"): inverse.float()}

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions int64 [B, N] -> cos and sin [B, 1, N, Dh] in `dtype`."""
        inverse = self._inverse.get(positions.device)
        if inverse is None:
            inverse = self._inverse[positions.device] = self._inverse[torch.device("cpu")].to(positions.device)
        angles = positions.float()[:, None, :, None] * inverse
        both = torch.cat([angles, angles], dim=-1)
        return (both.cos() * self._scale).to(dtype), (both.sin() * self._scale).to(dtype)


def inverse_frequencies(config: DrafterConfig) -> tuple[Tensor, float]:
    """Inverse frequencies float64 [Dh / 2] and the factor on cos and sin (1 except for yarn)."""
    if config.rope_scaling is None:
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        return config.rope_theta**-exponents, 1.0
    # transformers has the scalings already; imported here because unscaled targets need no transformers at all.
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_theta": config.rope_theta, **config.rope_scaling}
    view = SimpleNamespace(
        rope_theta=config.rope_theta,
        rope_parameters=parameters,
        rope_scaling=parameters,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        standardize_rope_params=lambda: None,
    )
    inverse, scale = ROPE_INIT_FUNCTIONS[config.rope_scaling["rope_type"]](view, torch.device("cpu"))
    return inverse.double(), float(scale)
