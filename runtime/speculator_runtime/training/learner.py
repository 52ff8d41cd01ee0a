"""The drafter under training: one optimiser step on a list of samples, and all state that a resume needs.

Knows nothing of queues, clocks, files or S3.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from speculator_runtime.contracts.settings import TrainingConfig
from speculator_runtime.drafter.checkpoint import Checkpoint, load_into
from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.vocabulary import VocabularyMap

from .batch import Batch, collate
from .losses import step_weights
from .sample import Sample
from .schedule import UpdateGuard, learning_rate
from .target import TargetTensors
from .unroll import unroll

# Context rows of one forward and backward; a batch with more is split, with the same result.
_MICRO_BATCH_ROWS = 8192


@dataclass(frozen=True)
class StepReport:
    """What one optimiser step did."""

    step: int  # optimiser steps applied so far, this one included
    applied: bool
    loss: float  # average over supervised rows, weighted over TTT steps
    gradient_norm: float
    learning_rate: float
    accept_length: float  # teacher-forced, bonus token included: flatters
    rows: int
    tokens: int
    vocabulary_used: int


class Learner:
    """Drafter, vocabulary map and optimiser."""

    def __init__(
        self,
        config: DrafterConfig,
        training: TrainingConfig,
        target: TargetTensors,
        seed: int,
        start: Checkpoint | None = None,
        device: torch.device | None = None,
    ) -> None:
        """start: a drafter to fine-tune, whose vocabulary map is kept; None: random weights from `seed`, head rows
        from the target.
        """
        self.config = config
        self.training = training
        self.device = device or torch.device("cpu")
        self.embedding = target.embedding.to(self.device)
        self._target_head = target.head
        self.vocabulary = (
            start.vocabulary
            if start
            else VocabularyMap.initial(config.vocab_size, config.draft_vocab_size, config.eos_token_ids)
        )
        self.drafter = Eagle3Drafter(config, self.vocabulary.used)
        if start:
            load_into(self.drafter, start)
        else:
            self.drafter.reset(seed, target.head[self.vocabulary.tokens[: self.vocabulary.used]])
        self.drafter.to(self.device)
        self.optimiser = torch.optim.AdamW(
            self.drafter.parameters(),
            lr=training.learning_rate,
            betas=training.betas,
            weight_decay=training.weight_decay,
            fused=True,
        )
        self.guard = UpdateGuard()
        self._compute_dtype = torch.bfloat16 if training.precision == "bfloat16" else torch.float32
        self._unseen = torch.zeros(config.vocab_size, dtype=torch.int64)  # counts of tokens since the map last grew

    @property
    def step(self) -> int:
        """Optimiser steps applied."""
        return self.guard.applied

    def observe(self, output: Tensor) -> None:
        """Count tokens that the target wrote, int [n]; the map grows by them at the next step."""
        self._unseen += torch.bincount(output.long(), minlength=self.config.vocab_size)

    @torch.no_grad()
    def grow_vocabulary(self) -> range:
        """Give free slots to tokens that appeared; their head rows start from the target's."""
        filled = self.vocabulary.grow(self._unseen)
        self._unseen.zero_()
        if filled:
            rows = self._target_head[self.vocabulary.tokens[filled.start : filled.stop]]
            self.drafter.lm_head.weight[filled.start : filled.stop].copy_(rows)
            self.drafter.used = self.vocabulary.used
        return filled

    def learn(self, samples: Sequence[Sample]) -> StepReport:
        """One optimiser step. An update that is not finite or explodes is left out and counted."""
        self.grow_vocabulary()
        batches = [self._collate(part) for part in _micro_batches(samples)]
        counts = [sum(batch.supervised[k] for batch in batches) for k in range(self.training.ttt_length)]
        raw = step_weights(len(counts), self.training.ttt_decay)
        # Steps that supervise nothing (all answers are short) do not dilute the others.
        scale = sum(weight for weight, count in zip(raw, counts, strict=True) if count) or 1.0
        weights = [weight / scale / max(1, count) for weight, count in zip(raw, counts, strict=True)]
        rate = learning_rate(self.training, self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        loss, accepted, chains = 0.0, 0, 0
        for batch in batches:
            result = unroll(self.drafter, self.embedding, batch, self.training.loss, weights, self._compute_dtype)
            if not any(batch.supervised):
                continue
            result.loss.backward()  # type: ignore[no-untyped-call]
            loss += float(result.loss.detach())
            accepted += int(result.accepted)
            chains += result.chains
        # A batch that supervises nothing is no update, and no failure either.
        norm = self._clip() if any(counts) else math.nan
        applied = any(counts) and self.guard.admit(loss, norm)
        if applied:
            self.optimiser.step()
        return StepReport(
            step=self.step,
            applied=applied,
            loss=loss,
            gradient_norm=norm,
            learning_rate=rate,
            accept_length=1.0 + accepted / max(1, chains),
            rows=sum(counts),
            tokens=sum(batch.tokens for batch in batches),
            vocabulary_used=self.vocabulary.used,
        )

    def _collate(self, samples: Sequence[Sample]) -> Batch:
        batch = collate(samples, self.training.ttt_length, self.vocabulary.slots, torch.float32)
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def _clip(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.training.gradient_clip)
        return float(norm)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the state, on the CPU: weights, optimiser moments, vocabulary tokens, counts."""
        state = {f"weights/{name}": p.detach() for name, p in self.drafter.named_parameters()}
        for name, parameter in self.drafter.named_parameters():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                state[f"optimiser/{key}/{name}"] = value
        state["vocabulary/tokens"] = self.vocabulary.tokens[: self.vocabulary.used]
        state["vocabulary/unseen"] = self._unseen
        return {name: tensor.cpu().clone() for name, tensor in state.items()}

    def scalars(self) -> dict[str, Any]:
        """The state that is no tensor, JSON-compatible."""
        return {"guard": asdict(self.guard)}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
        """Continue from `tensors()` and `scalars()` of a learner of the same configuration, bit for bit.

        Raises KeyError or RuntimeError where they do not fit (another drafter shape).
        """
        parameters = dict(self.drafter.named_parameters())
        for name, parameter in parameters.items():
            stored = tensors[f"weights/{name}"]
            if stored.shape != parameter.shape:
                raise RuntimeError(f"{name} has shape {tuple(stored.shape)}, here {tuple(parameter.shape)}")
            parameter.copy_(stored)
            moments = {
                key.split("/")[1]: value
                for key, value in tensors.items()
                if key.startswith("optimiser/") and key.split("/", 2)[2] == name
            }
            if moments:
                self.optimiser.state[parameter] = {key: value.to(self.device).clone() for key, value in moments.items()}
        self.vocabulary = VocabularyMap(
            self.config.vocab_size, self.config.draft_vocab_size, tensors["vocabulary/tokens"].tolist()
        )
        self.drafter.used = self.vocabulary.used
        self._unseen.copy_(tensors["vocabulary/unseen"])
        self.guard = UpdateGuard(**scalars["guard"])


def _micro_batches(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Consecutive samples together while their rows stay within the bound; at least one each."""
    parts: list[list[Sample]] = []
    rows = 0
    for sample in samples:
        count = sample.hidden.shape[0]
        if not parts or rows + count > _MICRO_BATCH_ROWS:
            parts.append([])
            rows = 0
        parts[-1].append(sample)
        rows += count
    return parts
