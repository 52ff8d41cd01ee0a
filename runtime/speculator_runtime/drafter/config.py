"""Shape of a drafter: derived from the target's configuration and the Speculator's drafter settings.

Not for training knobs, and not for reading files: `checkpoint` writes and reads this shape as SGLang's config.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from speculator_runtime.contracts.settings import DrafterSettings

_DEFAULT_ROPE_THETA = 10000.0


class UnsupportedTarget(Exception):
    """The target's configuration has something that a Llama-family EAGLE-3 drafter cannot follow."""


def capture_layers(num_layers: int) -> tuple[int, int, int]:
    """Indices of the target's decoder layers whose INPUT hidden states feed the drafter, low to high.

    From 7 layers up this is SGLang's rule for Llama: (2, L // 2, L - 3). Below, that rule would repeat or reverse
    indices, so tiny targets (tests, first runs) use (0, L // 2, L - 1); one or two layers repeat an index, and the
    same hidden states are then concatenated twice.
    """
    if num_layers < 1:
        raise UnsupportedTarget(f"the target has {num_layers} decoder layers; at least one is needed")
    if num_layers >= 7:
        return (2, num_layers // 2, num_layers - 3)
    return (0, num_layers // 2, num_layers - 1)


@dataclass(frozen=True)
class DrafterConfig:
    """Everything that fixes the shapes and the arithmetic of a drafter. H: hidden size, V: target vocabulary."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    capture_layers: tuple[int, int, int]
    rms_norm_eps: float = 1e-5
    rope_theta: float = _DEFAULT_ROPE_THETA
    rope_scaling: Mapping[str, Any] | None = None
    max_position_embeddings: int = 2048
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise UnsupportedTarget(
                f"{self.num_attention_heads} attention heads cannot share {self.num_key_value_heads} key-value heads; "
                "set drafter.num_attention_heads to a multiple of drafter.num_key_value_heads"
            )
        if self.head_dim % 2:
            raise UnsupportedTarget(f"head_dim is {self.head_dim}; rotary embeddings need an even number")
        if not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise UnsupportedTarget(
                f"draft_vocab_size {self.draft_vocab_size} must be within 1 and the target's {self.vocab_size} tokens"
            )

    @property
    def full_vocabulary(self) -> bool:
        """Whether the draft vocabulary is the whole target vocabulary."""
        return self.draft_vocab_size == self.vocab_size

    @staticmethod
    def from_target(target: Mapping[str, Any], settings: DrafterSettings) -> "DrafterConfig":
        """The drafter's shape for a target.

        target: the target's Hugging Face configuration as a mapping (`config.to_dict()`, or its config.json).
        Raises UnsupportedTarget, naming the field, if the target is not of the Llama family.
        """

        def need(name: str) -> int:
            value = target.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UnsupportedTarget(
                    f"the target's configuration has {name}={value!r}; a positive integer is needed"
                )
            return value

        hidden, target_heads = need("hidden_size"), need("num_attention_heads")
        if target.get("hidden_act", "silu") != "silu":
            raise UnsupportedTarget(f"hidden_act is {target['hidden_act']!r}; only silu (Llama family) is supported")
        heads = settings.num_attention_heads or target_heads
        kv_heads = settings.num_key_value_heads or min(int(target.get("num_key_value_heads") or target_heads), heads)
        theta, scaling = _rope(target)
        vocab = need("vocab_size")
        return DrafterConfig(
            hidden_size=hidden,
            intermediate_size=settings.intermediate_size or need("intermediate_size"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=int(target.get("head_dim") or hidden // target_heads),
            vocab_size=vocab,
            draft_vocab_size=min(settings.draft_vocab_size, vocab),
            capture_layers=capture_layers(need("num_hidden_layers")),
            rms_norm_eps=float(target.get("rms_norm_eps", 1e-5)),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=int(target.get("max_position_embeddings", 2048)),
            bos_token_id=target.get("bos_token_id"),
            eos_token_ids=_token_ids(target.get("eos_token_id")),
        )

    def to_sglang(self) -> dict[str, Any]:
        """The config.json that SGLang's LlamaForCausalLMEagle3 loads, and the captured layers under a key of ours."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None if self.rope_scaling is None else dict(self.rope_scaling),
            "max_position_embeddings": self.max_position_embeddings,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "tie_word_embeddings": False,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": list(self.eos_token_ids) or None,
            "torch_dtype": "float32",
            "speculator_capture_layers": list(self.capture_layers),
        }


def _rope(target: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """theta and scaling from either spelling: rope_parameters (transformers 5), or rope_theta and rope_scaling."""
    parameters = dict(target.get("rope_parameters") or {})
    theta = float(parameters.pop("rope_theta", None) or target.get("rope_theta") or _DEFAULT_ROPE_THETA)
    scaling = parameters or dict(target.get("rope_scaling") or {})
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if float(scaling.get("partial_rotary_factor") or target.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedTarget("the target rotates a part of each head only (partial_rotary_factor); not supported")
    if kind == "default":
        return theta, None
    if kind not in {"linear", "llama3", "yarn"}:
        raise UnsupportedTarget(f"rope_type {kind!r} is not supported; default, linear, llama3 and yarn are")
    scaling.pop("type", None)
    return theta, {"rope_type": kind, **{k: v for k, v in scaling.items() if k != "rope_type"}}


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list | tuple) else (int(value),)
