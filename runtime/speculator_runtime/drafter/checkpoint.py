"""Drafter checkpoints in SGLang's layout: model.safetensors and config.json in one directory. Never pickle.

Reading is strict: every tensor is accounted for both ways, with shape and dtype, finite, and the vocabulary map must be
consistent. SGLang skips unknown and missing names silently, so this is where a bad checkpoint is stopped.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from speculator_runtime.contracts.control import RefusalReason

from .config import DrafterConfig
from .model import Eagle3Drafter
from .vocabulary import VocabularyMap, VocabularyMapError, silent_rows

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
_WEIGHT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAP_DTYPES = {"d2t": torch.int64, "t2d": torch.bool}
# What must agree between a checkpoint's config.json and the drafter that shall take it.
_CONFIG_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "num_hidden_layers",
)


class CheckpointRefused(Exception):
    """A drafter checkpoint cannot be loaded; the message says what was wrong and what to do."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Checkpoint:
    """A checked drafter checkpoint."""

    state: dict[str, Tensor]  # the drafter's parameters by name, in the file's dtype
    vocabulary: VocabularyMap
    sha256: str  # of model.safetensors


def parameter_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters a drafter of this configuration has."""
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in Eagle3Drafter(config).named_parameters()}


def file_sha256(path: Path) -> str:
    """Lower-case hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_checkpoint(
    directory: Path, drafter: Eagle3Drafter, vocabulary: VocabularyMap, dtype: torch.dtype = torch.float32
) -> str:
    """Write model.safetensors and config.json into `directory`; returns the sha256 of model.safetensors.

    Free rows of the head are written as `silent_rows`. Raises CheckpointRefused if a weight is not finite: such a
    drafter is never written.
    """
    state = {name: p.detach().to("cpu", dtype) for name, p in drafter.named_parameters()}
    state["lm_head.weight"] = silent_rows(state["lm_head.weight"], vocabulary.used)
    _check_finite(state)
    directory.mkdir(parents=True, exist_ok=True)
    config = drafter.config.to_sglang() | {"torch_dtype": str(dtype).removeprefix("torch.")}
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = {name: t.contiguous() for name, t in state.items()} | {"d2t": vocabulary.d2t(), "t2d": vocabulary.t2d()}
    save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    return file_sha256(directory / WEIGHTS_FILE)


def read_checkpoint(directory: Path, config: DrafterConfig, sha256: str | None = None) -> Checkpoint:
    """Read and check a checkpoint for a drafter of `config`; raises CheckpointRefused and touches nothing else.

    sha256: expected digest of model.safetensors, compared before anything is parsed; None trusts the file.
    """
    weights = directory / WEIGHTS_FILE
    for path in (weights, directory / CONFIG_FILE):
        if not path.is_file():
            raise CheckpointRefused(RefusalReason.MISSING, f"{path} does not exist; fetch the version again")
    digest = file_sha256(weights)
    if sha256 is not None and digest != sha256:
        raise CheckpointRefused(
            RefusalReason.DIGEST_MISMATCH,
            f"{weights} has sha256 {digest}, the version says {sha256}; the file was changed or cut: fetch it again",
        )
    _check_config(directory / CONFIG_FILE, config)
    tensors = _read_tensors(weights)
    _check_names_and_shapes(tensors, config)
    _check_dtypes(tensors)
    try:
        vocabulary = VocabularyMap.from_d2t(tensors.pop("d2t"), tensors.pop("t2d"))
    except VocabularyMapError as error:
        raise CheckpointRefused(RefusalReason.VOCABULARY_MAP, f"{weights}: {error}") from error
    _check_finite(tensors)
    return Checkpoint(tensors, vocabulary, digest)


@torch.no_grad()
def load_into(drafter: Eagle3Drafter, checkpoint: Checkpoint) -> None:
    """Copy a checked checkpoint into a live drafter, in place; the caller holds off draft steps meanwhile."""
    parameters = dict(drafter.named_parameters())
    if parameters.keys() != checkpoint.state.keys():
        raise CheckpointRefused(
            RefusalReason.TENSOR_NAMES, "the checkpoint was read for a drafter of another architecture; read it again"
        )
    for name, parameter in parameters.items():
        parameter.copy_(checkpoint.state[name])
    drafter.used = checkpoint.vocabulary.used


def live_digest(drafter: Eagle3Drafter, d2t: Tensor) -> str:
    """sha256 over the live parameters (sorted names, little-endian float32) and d2t: proof of what is loaded.

    Over each parameter: its name, its shape, its values; then `d2t` as int64. The order of names is Python's.
    """
    return state_digest(((name, p.detach()) for name, p in drafter.named_parameters()), d2t)


def state_digest(state: Iterable[tuple[str, Tensor]], d2t: Tensor) -> str:
    """As `live_digest`, over a checkpoint's tensors: equal for a checkpoint and for the drafter it was loaded into.

    For a checkpoint in a narrower dtype than the live drafter it is equal too (widening is exact); a live drafter
    narrower than its checkpoint has another digest, as it runs other weights.
    """
    digest = hashlib.sha256()
    for name, tensor in [*sorted(state), ("d2t", d2t)]:
        wide = tensor.to("cpu", torch.int64 if name == "d2t" else torch.float32).contiguous()
        digest.update(f"{name}:{tuple(wide.shape)}\n".encode())
        digest.update(wide.numpy().tobytes())
    return digest.hexdigest()


def _check_config(path: Path, config: DrafterConfig) -> None:
    try:
        stored: Any = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointRefused(RefusalReason.CORRUPT, f"{path} is not JSON: {error}; fetch it again") from error
    if not isinstance(stored, dict):
        raise CheckpointRefused(RefusalReason.CORRUPT, f"{path} holds no JSON object; fetch it again")
    expected = config.to_sglang()
    wrong = [f"{k} is {stored.get(k)!r}, here {expected[k]!r}" for k in _CONFIG_KEYS if stored.get(k) != expected[k]]
    layers = stored.get("speculator_capture_layers")
    if layers is not None and list(layers) != list(config.capture_layers):
        wrong.append(f"captured layers are {layers}, here {list(config.capture_layers)}")
    if wrong:
        raise CheckpointRefused(
            RefusalReason.TENSOR_SHAPES,
            f"{path} describes another drafter: {'; '.join(wrong)}. It belongs to another target or to other drafter "
            "settings: publish a version for this target, or set spec.drafter as it was",
        )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointRefused(
            RefusalReason.CORRUPT, f"{path} is not a whole safetensors file: {error}; fetch it again"
        ) from error


def _check_names_and_shapes(tensors: Mapping[str, Tensor], config: DrafterConfig) -> None:
    expected = parameter_shapes(config) | {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        hint = "; embed_tokens is the target's own and must not be exported" if _has_embedding(unknown) else ""
        raise CheckpointRefused(
            RefusalReason.TENSOR_NAMES,
            f"tensors missing: {missing or 'none'}; unknown: {unknown or 'none'}{hint}. "
            "Export with the names of SGLang's LlamaForCausalLMEagle3",
        )
    wrong = [
        f"{name} {tuple(tensors[name].shape)}, here {shape}"
        for name, shape in sorted(expected.items())
        if tuple(tensors[name].shape) != shape
    ]
    if wrong:
        raise CheckpointRefused(
            RefusalReason.TENSOR_SHAPES, f"tensors of another shape: {'; '.join(wrong)}; use the same drafter settings"
        )


def _has_embedding(names: Iterable[str]) -> bool:
    return any("embed_tokens" in name for name in names)


def _check_dtypes(tensors: Mapping[str, Tensor]) -> None:
    def wrong() -> Iterator[str]:
        for name, tensor in sorted(tensors.items()):
            allowed = (_MAP_DTYPES[name],) if name in _MAP_DTYPES else _WEIGHT_DTYPES
            if tensor.dtype not in allowed:
                yield f"{name} is {tensor.dtype}, allowed: {', '.join(map(str, allowed))}"

    found = list(wrong())
    if found:
        raise CheckpointRefused(RefusalReason.TENSOR_DTYPES, f"{'; '.join(found)}; export it again in such a dtype")


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    wrong = [name for name, tensor in sorted(tensors.items()) if not bool(torch.isfinite(tensor).all())]
    if wrong:
        raise CheckpointRefused(
            RefusalReason.NOT_FINITE,
            f"NaN or infinity in {', '.join(wrong)}; training went wrong: keep the version before it",
        )
