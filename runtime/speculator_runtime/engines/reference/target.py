"""The target model: loading it, its identity, and one forward over the slots of a batch.

The forward walks the decoder layers of transformers itself: nothing is computed that a step does not need, and the
hidden states at the inputs of the captured layers are simply kept while they pass. What a layer computes is
transformers' own code. Not for sampling, and not for deciding what to run.
"""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from speculator_runtime.drafter.config import capture_layers

from .attention import ATTENTION_NAME, slot_mask, transformers_attention
from .cache import SlotCache
from .packing import can_pack, pack_linears

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
# Architectures whose model forward is: embed, rotary, layers in order, norm. Others (scaled embeddings, alternating
# masks, per-layer rotary) would load and then silently compute something else.
LLAMA_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class TargetError(Exception):
    """The target cannot be loaded or is not supported; the message says what to do."""


class Forwarded(NamedTuple):
    """What one forward yields."""

    hidden: Tensor  # [B, N, H] after the final norm: `Target.logits` takes rows of it
    features: Tensor  # [B, N, 3H] inputs of the captured layers, low to high


class Target:
    """A loaded Llama-family model in eval mode."""

    def __init__(self, model: Any, digest: str) -> None:
        """model: a transformers causal language model of the Llama family; raises TargetError if it is not."""
        config = model.config
        kind = config.model_type
        if kind not in LLAMA_FAMILY:
            raise TargetError(
                f"the target's model_type is {kind!r}; the reference engine serves {', '.join(sorted(LLAMA_FAMILY))}"
            )
        if getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None):
            raise TargetError("the target uses sliding-window attention, which the reference engine does not implement")
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, transformers_attention)
        config._attn_implementation = ATTENTION_NAME
        self.config = config
        self.digest = digest
        self.model = model.eval().requires_grad_(False)
        self._body = model.model
        # Kept apart: packing replaces the module, and tied heads share it with the embedding anyway.
        self.head_weight: Tensor = model.lm_head.weight
        if can_pack(model.dtype, model.device):
            with torch.no_grad():
                pack_linears(model)
        self._head = model.lm_head
        self.layers: int = config.num_hidden_layers
        self.capture_layers = capture_layers(self.layers)
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = config.vocab_size
        self._kv_heads: int = config.num_key_value_heads
        self._groups: int = config.num_attention_heads // config.num_key_value_heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and of hidden states and logits."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    @property
    def embedding(self) -> Tensor:
        """Token embedding [V, H]: the drafter reads it too."""
        weight: Tensor = self._body.embed_tokens.weight
        return weight

    @property
    def norm_weight(self) -> Tensor:
        """[H]."""
        weight: Tensor = self._body.norm.weight
        return weight

    def cache(self, slots: int, rows: int) -> SlotCache:
        """A key-value cache that fits this target."""
        return SlotCache(self.layers, slots, rows, self._kv_heads, self._head_dim, self.dtype, self.device)

    def forward(
        self, cache: SlotCache, first: int, lengths: list[int], tokens: Tensor, depths: Tensor, tree: Tensor
    ) -> Forwarded:
        """Run N new tokens for each of the sequences in slots first..first+B-1, in one forward.

        lengths: committed rows of each slot. tokens: int64 [B, N]. depths: int64 [B or 1, N]; position is length +
        depth. tree: bool [B or 1, N, N], which new rows a new token sees (itself and its ancestors). The new rows are
        written at rows length..length+N-1 of each slot.
        """
        window = cache.window(first, lengths, tokens.shape[1])
        mask = slot_mask(lengths, tree, self._groups, self.dtype, self.device)
        positions = torch.tensor(lengths, device=self.device)[:, None] + depths
        hidden = self._body.embed_tokens(tokens)
        rotary = self._body.rotary_emb(hidden, position_ids=positions)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self._body.layers):
            if index in self.capture_layers:
                kept[index] = hidden
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=window,
                use_cache=True,
                position_embeddings=rotary,
            )
        features = torch.cat([kept[index] for index in self.capture_layers], dim=-1)
        return Forwarded(self._body.norm(hidden), features)

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of `Forwarded.hidden` [..., H] -> [..., V]."""
        result: Tensor = self._head(hidden)
        return result


def load_target(path: Path, dtype: str, device: torch.device) -> tuple[Target, PreTrainedTokenizerBase]:
    """Load a checkpoint directory, a GGUF file, or a directory that holds one GGUF file and no safetensors.

    Raises TargetError, naming the path.
    """
    directory, gguf = _locate(path)
    extra = {"gguf_file": gguf} if gguf else {}
    try:
        if not gguf:
            kind = AutoConfig.from_pretrained(directory, local_files_only=True).model_type
            if kind not in LLAMA_FAMILY:
                raise TargetError(
                    f"{path} has model_type {kind!r}; the reference engine serves {', '.join(sorted(LLAMA_FAMILY))}"
                )
        answer: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=DTYPES[dtype], local_files_only=True, output_loading_info=True, **extra
        )
        model, loaded = answer
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, **extra)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise TargetError(
            f"cannot load the target from {path}: {error}; give a Llama-family checkpoint directory or a GGUF file"
        ) from error
    wrong = sorted(loaded["missing_keys"]) + sorted(str(key) for key in loaded["mismatched_keys"])
    if wrong:  # transformers fills these with random numbers and only warns
        raise TargetError(
            f"{path} lacks {len(wrong)} of the weights that its config.json asks for ({', '.join(wrong[:3])}...); "
            "fetch the checkpoint again"
        )
    # GGUF has no notion of the dtype asked for in every transformers release; the cast is free where it already holds.
    placed: Any = torch.nn.Module.to(model, device=device, dtype=DTYPES[dtype])
    return Target(placed, target_digest(path)), tokenizer


def _locate(path: Path) -> tuple[Path, str | None]:
    if path.is_file():
        if path.suffix != ".gguf":
            raise TargetError(f"{path} is a file but not a .gguf file; give the checkpoint's directory")
        return path.parent, path.name
    if not path.is_dir():
        raise TargetError(f"{path} does not exist; was the target fetched? (see the init container's log)")
    ggufs = sorted(p.name for p in path.glob("*.gguf"))
    if any(path.glob("*.safetensors")) or not ggufs:
        return path, None
    if len(ggufs) > 1:
        raise TargetError(f"{path} holds {len(ggufs)} GGUF files ({', '.join(ggufs)}); name the one to serve")
    return path, ggufs[0]


def target_digest(path: Path) -> str:
    """sha256 over name and sha256 of every file of the checkpoint (of the one file, for a GGUF path), names sorted.

    Hidden files and directories are left out: downloads leave their book-keeping there.
    """
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(f"{file.name}\0{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
