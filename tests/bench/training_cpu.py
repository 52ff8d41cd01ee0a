"""How fast, and how well, the trainer learns a real target's answers on one CPU core.

    python tests/bench/training_cpu.py --target DIR --prompts FILE.jsonl --seconds 120

Answers of SmolLM2-135M-Instruct (made once, cached) arrive one after another while the learner trains; the clock is
CPU seconds of training alone, so that a busy machine gives the same table. At each mark the drafter goes through the
reference engine's draft-verify loop on held-out prompts, which share no schema with the training ones. Accept length:
tokens committed per verify step, the bonus token included. One process, one thread, one seed.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import training_data
from training_decode import accept_lengths

from speculator_runtime.contracts.settings import DrafterSettings, TrainingConfig
from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.traffic.prompts import builtin
from speculator_runtime.training.buffer import SampleBuffer
from speculator_runtime.training.learner import Learner
from speculator_runtime.training.sample import from_trace
from speculator_runtime.training.target import load_target_tensors


def main() -> None:
    """Train, measure, print a table and the settings as JSON."""
    args = _arguments()
    torch.set_num_threads(1)
    train, heldout = _prompts(args)
    target = load_target_tensors(args.target)
    config = DrafterConfig.from_target(target.config, DrafterSettings(**json.loads(args.drafter)))
    training = TrainingConfig(**(DEFAULTS | json.loads(args.training)))
    samples = [from_trace(t, training.max_sequence_length) for t in training_data.traces(args.target, train, 96)]
    held = training_data.traces(args.target, heldout, 96)
    print(f"{len(samples)} training answers, {len(held)} held out, {sum(s.output.numel() for s in samples)} tokens")

    learner, buffer = Learner(config, training, target, args.seed), SampleBuffer(training)
    generator = torch.Generator().manual_seed(args.seed)
    arrived, spent, marks = 0, 0.0, sorted(args.marks)
    print(training.model_dump_json(exclude_defaults=True), args.drafter)
    print(
        "| training s | steps | requests | slots used | coverage | loss | "
        + " | ".join(f"chain {n}" for n in args.chains)
        + " |"
    )
    while marks:
        due = min(len(samples), training.warmup_requests + int(spent / args.arrival))
        for sample in samples[arrived:due]:
            learner.observe(sample.output)
            buffer.add(sample)
        arrived = due
        begin = time.process_time()
        report = learner.learn(buffer.draw(training.batch_size, training.max_fresh_per_batch, generator))
        spent += time.process_time() - begin
        if spent >= marks[0]:
            marks.pop(0)
            slots = learner.vocabulary.slots
            outputs = torch.cat([t.tensors["tokens"][t.header.prompt_length :] for t in held]).long()
            lengths = accept_lengths(args.target, learner.drafter, learner.vocabulary, held, args.chains)
            cells = [
                f"{spent:.0f}",
                report.step,
                arrived,
                report.vocabulary_used,
                f"{float((slots[outputs] >= 0).float().mean()):.2f}",
                f"{report.loss:.3f}",
                *(f"{x:.2f}" for x in lengths),
            ]
            print(
                "| " + " | ".join(map(str, cells)) + f" | {1000 * spent / report.step:.0f} ms/step, "
                f"teacher-forced {report.accept_length:.2f}, skipped {learner.guard.skipped}",
                flush=True,
            )


DEFAULTS = {
    "ttt_length": 3,
    "learning_rate": 1e-3,
    "final_learning_rate": 2e-4,
    "decay_steps": 500,
    "warmup_steps": 20,
    "batch_size": 4,
    "max_fresh_per_batch": 2,
    "precision": "float32",
}


def _prompts(args: argparse.Namespace) -> tuple[list, list]:
    if args.prompts.startswith("builtin:"):
        domains = args.prompts.split(":")[1].split(",")
        pick = {
            split: [[(p.domain, p.prompt) for p in builtin(d, split)] for d in domains]
            for split in ("train", "heldout")
        }
        each, held = args.requests // len(domains), args.heldout // len(domains)
        return [p for row in zip(*(d[:each] for d in pick["train"]), strict=True) for p in row], [
            p for d in pick["heldout"] for p in d[:held]
        ]
    prompts = training_data.read_prompts(Path(args.prompts))
    if args.cached:
        prompts = training_data.already_made(args.target, prompts, 96)
    train, held = training_data.split_by_schema(prompts, args.heldout)
    return train[: args.requests], held


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = training_data.cache_directory() / "targets" / "smollm2-135m-instruct"
    parser.add_argument("--target", type=Path, default=default)
    parser.add_argument("--prompts", default="builtin:code,sql", help="FILE.jsonl, or builtin:DOMAIN,DOMAIN")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--heldout", type=int, default=20)
    parser.add_argument("--arrival", type=float, default=3.0, help="seconds between requests after the warm-up")
    parser.add_argument("--marks", type=float, nargs="+", default=[30, 60, 120])
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--cached", action="store_true", help="use only answers that are in the cache already")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--training", default="{}", help="JSON, fields of TrainingConfig")
    parser.add_argument("--drafter", default='{"draft_vocab_size": 4096}', help="JSON, fields of DrafterSettings")
    return parser.parse_args()


if __name__ == "__main__":
    main()
