"""A small random Llama checkpoint with a real tokenizer and chat template, made offline in about a second.

For tests, and for the end-to-end loop on the cluster, where the target must be slow enough beside its drafter that
speculation pays (many thin layers) and its greedy output regular enough to be learnt.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A target whose drafter can pay within minutes. On one CPU thread in float32 a decode step takes about 4 ms (16 thin
# layers) beside 0.4 ms for a draft step: chains of 1 / 2 / 3 break even at an accept length of 1.25 / 1.4 / 1.5 at
# one to four requests in flight, and a learnt one can reach about 1 + 0.96 + 0.96**2 + 0.96**3.
LEARNABLE: dict[str, Any] = {"layers": 16, "hidden": 64, "scale": 0.02}
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CORPUS = [
    "SELECT name, count(*) FROM orders WHERE total > 100 GROUP BY name ORDER BY name;",
    "def add(first, second):\n    return first + second\n\nfor item in items:\n    print(item)\n",
    "The quick brown fox jumps over the lazy dog, and then it sleeps under a tree until the evening.",
    "The net income of the company rose by 12 percent to 340 million dollars in the second quarter.",
    "If a train travels 60 miles in 2 hours, how far will it travel in 5 hours? 60 / 2 = 30, so 30 * 5 = 150.",
]


def make_tiny_target(
    directory: Path,
    *,
    layers: int = 4,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 512,
    seed: int = 0,
    scale: float = 0.08,
    max_positions: int = 2048,
) -> Path:
    """Write config.json, model.safetensors, tokenizer.json and the chat template; returns `directory`.

    scale: standard deviation of the weights. Larger values make outputs less repetitive and logits less flat: with 16
    layers and hidden 64, the token before predicts the next one on unseen prompts at a rate of 0.96 / 0.83 / 0.56 /
    0.37 for 0.02 / 0.04 / 0.06 / 0.08 (greedy). `LEARNABLE` holds settings for loops in which a drafter has to win.
    The tokenizer is a byte-level BPE of at most `vocab` tokens (every text round-trips); unused ids stay unused.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=_SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if tokenizer.get_vocab_size() > vocab:
        raise ValueError(f"vocab {vocab} is too small: bytes and special tokens take {tokenizer.get_vocab_size()}")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_SPECIAL[0], bos_token=_SPECIAL[0], pad_token=_SPECIAL[0]
    )
    fast.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        max_position_embeddings=max_positions,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                deviation = 1.0 if "embed_tokens" in name else scale
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory
