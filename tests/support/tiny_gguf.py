"""A tiny checkpoint as a GGUF file (float32), as llama.cpp's converter lays it out."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(checkpoint: Path, path: Path) -> Path:
    """Convert a directory made by `make_tiny_target`; returns `path`."""
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, checkpoint, config["vocab_size"])
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        writer.add_tensor(*_converted(name, tensor, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(name: str, tensor: np.ndarray, config: dict[str, Any]) -> tuple[str, np.ndarray]:
    if name in _WHOLE:
        return _WHOLE[name], tensor
    _, _, layer, part = name.split(".", 3)
    part = part.removesuffix(".weight")
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
    if part in heads:
        tensor = _interleaved(tensor, config[heads[part]])
    return f"blk.{layer}.{_NAMES[part]}.weight", tensor


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs where transformers rotates halves: the rows of a head change places."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(weight.shape))


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, vocab_size: int) -> None:
    stored = json.loads((checkpoint / "tokenizer.json").read_text())
    ids = stored["model"]["vocab"] | {token["content"]: token["id"] for token in stored["added_tokens"]}
    special = {token["id"] for token in stored["added_tokens"]}
    tokens = {number: text for text, number in ids.items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([tokens.get(i, f"<unused{i}>") for i in range(vocab_size)])
    kinds = [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(vocab_size)]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
