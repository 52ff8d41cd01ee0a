"""What the trainer knows of the target: configuration, token embedding, final norm and head. Never its layers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class TargetTensorsError(Exception):
    """The target's embedding, norm or head cannot be read; the message says where and what to do."""


@dataclass(frozen=True)
class TargetTensors:
    """The target's ends."""

    config: dict[str, Any]  # its config.json
    embedding: Tensor  # [V, H], in the checkpoint's dtype
    norm: Tensor  # [H]
    head: Tensor  # [V, H]; the embedding itself where they are tied


def load_target_tensors(path: Path) -> TargetTensors:
    """Read the three tensors, picked by name, from a checkpoint directory or one safetensors file beside config.json.

    Raises TargetTensorsError.
    """
    directory = path if path.is_dir() else path.parent
    config = _config(directory / "config.json")
    files = _by_name(path, directory)
    embedding = _read(files, EMBEDDING, path)
    norm = _read(files, NORM, path)
    head = _read(files, HEAD, path) if HEAD in files else embedding
    expected = (config.get("vocab_size"), config.get("hidden_size"))
    if tuple(embedding.shape) != expected or head.shape != embedding.shape or norm.shape != embedding.shape[1:]:
        raise TargetTensorsError(
            f"{path}: embedding {tuple(embedding.shape)}, head {tuple(head.shape)} and norm {tuple(norm.shape)} do not "
            f"fit config.json (vocab_size, hidden_size = {expected}); they belong to different checkpoints"
        )
    if HEAD not in files and not config.get("tie_word_embeddings", False):
        raise TargetTensorsError(
            f"{path} has no {HEAD}, and config.json does not tie it to the embedding; fetch the target again"
        )
    return TargetTensors(config, embedding, norm, head)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TargetTensorsError(f"cannot read the target's {path}: {error}; was the target fetched?") from error
    if not isinstance(config, dict):
        raise TargetTensorsError(f"{path} holds no JSON object; fetch the target again")
    return config


def _by_name(path: Path, directory: Path) -> dict[str, Path]:
    """Which file holds which tensor."""
    index = directory / "model.safetensors.index.json"
    if path.is_dir() and index.is_file():
        try:
            return {name: directory / file for name, file in json.loads(index.read_text())["weight_map"].items()}
        except (KeyError, AttributeError, json.JSONDecodeError) as error:
            raise TargetTensorsError(f"{index} is not an index of safetensors files: {error}") from error
    return {name: file for file in _files(path) for name in _names(file)}


def _files(path: Path) -> Iterator[Path]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise TargetTensorsError(
            f"no safetensors file at {path}; set target_embedding to the target's checkpoint directory, or to a "
            f"safetensors file with {EMBEDDING} and {NORM}"
        )
    yield from files


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as content:
            return list(content.keys())
    except (SafetensorError, OSError) as error:
        raise TargetTensorsError(f"{file} is not a whole safetensors file: {error}; fetch the target again") from error


def _read(files: dict[str, Path], name: str, path: Path) -> Tensor:
    if name not in files:
        raise TargetTensorsError(f"{path} has no tensor {name}; it is not a checkpoint of the Llama family")
    try:
        with safe_open(files[name], framework="pt") as content:
            tensor: Tensor = content.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise TargetTensorsError(f"cannot read {name} from {files[name]}: {error}; fetch the target again") from error
    if not bool(torch.isfinite(tensor).all()):
        raise TargetTensorsError(f"{name} in {files[name]} holds NaN or infinity; fetch the target again")
    return tensor
