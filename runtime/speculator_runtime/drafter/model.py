"""The EAGLE-3 drafter of the Llama family, with parameter names equal to SGLang's LlamaForCausalLMEagle3 checkpoint.

The token embedding is the target's own: it is passed in by the caller, is no parameter here and is never exported.

Two uses share the same pieces:
- serving (`forward`): rows at arbitrary positions with the caller's key-value cache and additive mask: a chain, a tree,
  or a catch-up of several committed tokens are all the same call;
- training: `speculator_runtime.training.unroll` composes the pieces (`fuse`, `layer_input`,
  `queries`, `keys_values`, `finish`) into the TTT forward.

Sizes: B sequences, N new rows, P cached rows, H hidden, Dh head dimension, U used slots of the draft vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import DrafterConfig
from .rope import Rotary
from .vocabulary import silent_rows


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 (float64 stays float64), as in Llama."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size], in the dtype of x."""
        wide = x if x.dtype == torch.float64 else x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class _Attention(nn.Module):
    """The projections only: the attention itself is computed where the cache is known."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width = 2 * config.hidden_size
        self.q_proj = nn.Linear(width, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)


class _MLP(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Projected(NamedTuple):
    """Queries [B, Nh, N, Dh], keys and values [B, Nkv, N, Dh] (queries and keys rotated) of N rows."""

    query: Tensor
    key: Tensor
    value: Tensor


class DraftStep(NamedTuple):
    """What one serving call yields; the caller appends key and value to its cache."""

    hidden: Tensor  # [B, N, H], before the final norm: the next draft step's hidden input
    logits: Tensor  # [B, N, U], over the used slots
    key: Tensor  # [B, Nkv, N, Dh]
    value: Tensor  # [B, Nkv, N, Dh]


class Eagle3Drafter(nn.Module):
    """One decoder layer over concat(norm(embedding), norm(hidden)); a head over the draft vocabulary."""

    def __init__(self, config: DrafterConfig, used: int | None = None) -> None:
        """used: slots of the draft vocabulary in use (all if None); the head is computed over these only."""
        super().__init__()
        self.config = config
        self.used = config.draft_vocab_size if used is None else used
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = _Layer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary = Rotary(config)

    def fuse(self, features: Tensor) -> Tensor:
        """Target features [..., 3H] (captured layers, low to high) -> hidden input [..., H]."""
        return self.fc(features)  # type: ignore[no-any-return]

    def project(self, embeds: Tensor, hidden: Tensor, positions: Tensor) -> Projected:
        """Queries, keys and values of rows with token embeddings and hidden inputs [B, N, H] at positions [B, N]."""
        both = self.layer_input(embeds, hidden)
        return Projected(self.queries(both, positions), *self.keys_values(both, positions))

    def layer_input(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """concat(input_layernorm(embeds), hidden_norm(hidden)): [..., H] and [..., H] -> [..., 2H]."""
        return torch.cat([self.midlayer.input_layernorm(embeds), self.midlayer.hidden_norm(hidden)], dim=-1)

    def queries(self, both: Tensor, positions: Tensor) -> Tensor:
        """Rotated queries [B, Nh, N, Dh] of rows with layer input [B, N, 2H] at positions [B, N]."""
        return self._rotated(self.midlayer.self_attn.q_proj(both), positions)

    def keys_values(self, both: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, each [B, Nkv, N, Dh], of rows with layer input [B, N, 2H] at positions [B, N]."""
        value = self._heads(self.midlayer.self_attn.v_proj(both))
        return self._rotated(self.midlayer.self_attn.k_proj(both), positions), value

    def _heads(self, projected: Tensor) -> Tensor:
        size = self.config.head_dim
        return projected.view(*projected.shape[:2], projected.shape[-1] // size, size).transpose(1, 2)

    def _rotated(self, projected: Tensor, positions: Tensor) -> Tensor:
        heads = self._heads(projected)
        cos, sin = self.rotary(positions, heads.dtype)
        return _rotate(heads, cos, sin)

    def finish(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """Attention output [B, Nh, N, Dh] and the residual [B, N, H] -> the layer's output before the norm."""
        residual = hidden + self.midlayer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return residual + self.midlayer.mlp(self.midlayer.post_attention_layernorm(residual))  # type: ignore[no-any-return]

    def head(self, hidden: Tensor) -> Tensor:
        """Pre-norm hidden [..., H] -> draft logits [..., U] over the used slots."""
        return functional.linear(self.norm(hidden), self.lm_head.weight[: self.used])

    def attend(
        self, embeds: Tensor, hidden: Tensor, positions: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `forward`, without the head (prefill needs the logits of one row only): hidden [B, N, H], key, value."""
        query, key, value = self.project(embeds, hidden, positions)
        attended = functional.scaled_dot_product_attention(
            query,
            torch.cat([keys, key], dim=2),
            torch.cat([values, value], dim=2),
            attn_mask=mask,
            enable_gqa=self.config.num_attention_heads != self.config.num_key_value_heads,
        )
        return self.finish(attended, hidden), key, value

    def forward(
        self, embeds: Tensor, hidden: Tensor, positions: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> DraftStep:
        """One serving call: N rows a sequence, each seeing what the mask lets it see.

        embeds: the target's embedding of each row's token, [B, N, H].
        hidden: `fuse(features)` for rows whose target features are known, else `DraftStep.hidden` of the row before.
        positions: int64 [B, N]. Row t holds the embedding of token x[t+1] with the features of position t; SGLang gives
        it position t, and so does training.
        keys, values: the cache, [B, Nkv, P, Dh], P may be 0 (`empty_cache`).
        mask: additive, [B, 1, N, P + N] (0 or -inf; cached rows first); None: every row sees every row.
        """
        output, key, value = self.attend(embeds, hidden, positions, keys, values, mask)
        return DraftStep(output, self.head(output), key, value)

    def empty_cache(self, batch: int) -> Tensor:
        """Keys (or values) of no rows: [B, Nkv, 0, Dh]."""
        weight = self.fc.weight
        return weight.new_zeros(batch, self.config.num_key_value_heads, 0, self.config.head_dim)

    @torch.no_grad()
    def reset(self, seed: int, head: Tensor | None = None, norm: Tensor | None = None) -> None:
        """Weights to start from: random from a seed, normal with deviation 0.02 (o_proj, down_proj: half), norms at 1.

        fc also passes the highest captured layer on, so that at first the residual is the target's own.
        head: rows to start the used slots from, [U, H] (the target's head rows of their tokens). Then the first output
        is a reading of that layer by the target's head: measured, worth about 40 training steps (docs/training.md).
        norm: weight of the final norm, [H]; the target's own starts worse than ones.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in sorted(self.named_parameters()):
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            deviation = 0.02 * (0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
        size = self.config.hidden_size
        self.fc.weight[:, 2 * size :] += torch.eye(size, dtype=self.fc.weight.dtype, device=self.fc.weight.device)
        if norm is not None:
            self.norm.weight.copy_(norm)
        if head is not None:
            self.lm_head.weight[: self.used].copy_(head)
        self.lm_head.weight.copy_(silent_rows(self.lm_head.weight, self.used))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in Llama's half-split layout; x [B, heads, N, Dh], cos and sin [B, 1, N, Dh]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin
