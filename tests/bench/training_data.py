"""Answers of a real target as traces, for the training benchmarks: greedy, cached on disk, the same on every run.

Generated with transformers, not with our engine, so that the trainer can be measured without it.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from speculator_runtime.contracts.trace import TraceHeader
from speculator_runtime.drafter.config import capture_layers
from speculator_runtime.traces.codec import Trace, decode, encode

TOP_K = 64


def cache_directory() -> Path:
    """Where everything that outlives a clone is kept."""
    return Path(os.environ.get("SPECULATOR_CACHE", "~/.cache/speculator-operator")).expanduser()


def read_prompts(path: Path) -> list[tuple[str, str]]:
    """(domain, prompt) of a JSONL file with `domain` and `prompt`."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["domain"], row["prompt"]) for row in rows]


def split_by_schema(prompts: Sequence[tuple[str, str]], heldout: int) -> tuple[list, list]:
    """Train and held-out prompts that share no first line (the schema, in the SQL set)."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for prompt in prompts:
        groups.setdefault(prompt[1].split("\n")[0], []).append(prompt)
    ordered = sorted(groups, key=lambda head: hashlib.sha256(head.encode()).hexdigest())
    held = ordered[: max(1, len(ordered) // 4)]

    # Round robin, so that few prompts already show several schemas.
    def deal(heads: list[str]) -> Iterator[tuple[str, str]]:
        for i in range(max(len(groups[h]) for h in heads)):
            yield from (groups[h][i] for h in heads if i < len(groups[h]))

    return list(deal([h for h in ordered if h not in held])), list(deal(held))[:heldout]


def traces(target: Path, prompts: Sequence[tuple[str, str]], max_tokens: int, say=print) -> list[Trace]:
    """Traces of the target's answers, generated where the cache has none."""
    folder = cache_directory() / "bench" / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{_key(target, prompt, max_tokens)}.trace" for _, prompt in prompts]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    if missing:
        say(f"generating {len(missing)} answers of {target.name}")
        for i, trace in _generate(target, [(i, *prompts[i]) for i in missing], max_tokens):
            part = paths[i].with_suffix(".part")
            part.write_bytes(encode(trace))
            part.rename(paths[i])
    return [decode(path.read_bytes()) for path in paths]


def already_made(target: Path, prompts: Sequence[tuple[str, str]], max_tokens: int) -> list[tuple[str, str]]:
    """The prompts whose answers are in the cache."""
    folder = cache_directory() / "bench" / "traces"
    return [p for p in prompts if (folder / f"{_key(target, p[1], max_tokens)}.trace").exists()]


def _key(target: Path, prompt: str, max_tokens: int) -> str:
    return hashlib.sha256(f"1\0{target.name}\0{max_tokens}\0{prompt}".encode()).hexdigest()[:32]


@torch.inference_mode()
def _generate(target: Path, prompts, max_tokens: int, group: int = 8) -> Iterator[tuple[int, Trace]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(target, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    layers = capture_layers(model.config.num_hidden_layers)
    for begin in range(0, len(prompts), group):
        part = prompts[begin : begin + group]
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            for _, _, prompt in part
        ]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        written = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        for row, (index, domain, _) in enumerate(part):
            prompt_ids = inputs.input_ids[row][inputs.attention_mask[row].bool()].tolist()
            answer = written[row, inputs.input_ids.shape[1] :].tolist()
            end = answer.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in answer else len(answer)
            yield index, _trace(model, layers, f"bench-{index}", domain, prompt_ids, answer[:end])


def _trace(model, layers, request_id: str, domain: str, prompt: list[int], answer: list[int]) -> Trace:
    tokens = torch.tensor(prompt + answer)
    out = model(tokens[None, :-1], output_hidden_states=True)
    logits = out.logits[0, len(prompt) - 1 :]
    top = logits.topk(TOP_K)
    return Trace(
        TraceHeader(
            request_id=request_id,
            domain=domain,
            prompt_length=len(prompt),
            total_length=len(tokens),
            hidden_size=model.config.hidden_size,
            vocab_size=model.config.vocab_size,
            capture_layers=layers,
            draft_version=0,
            target_digest="bench",
            mode="TargetOnly",
            arrived=0.0,
            finished=0.0,
        ),
        {
            "tokens": tokens.int(),
            "hidden_rows": torch.arange(len(tokens) - 1).int(),
            "hidden": torch.cat([out.hidden_states[i][0] for i in layers], -1),
            "teacher_rows": torch.arange(len(prompt) - 1, len(tokens) - 1).int(),
            "teacher_ids": top.indices.int(),
            "teacher_logits": top.values,
            "teacher_lse": logits.float().logsumexp(-1),
        },
    )
