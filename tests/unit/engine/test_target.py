"""Loading targets: directories, GGUF files, what is refused, and the digest that names them."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from speculator_runtime.engines.reference.target import Target, TargetError, load_target, target_digest
from support.tiny_gguf import write_gguf

CPU = torch.device("cpu")


def logits(target: Target, tokens: list[int]) -> torch.Tensor:
    n = len(tokens)
    causal = torch.ones(1, n, n, dtype=torch.bool).tril()
    out = target.forward(target.cache(1, n), 0, [0], torch.tensor([tokens]), torch.arange(n)[None], causal)
    return target.logits(out.hidden)


def test_a_gguf_file_is_the_same_target_as_the_directory_it_was_made_from(tiny_directory: Path, tmp_path: Path) -> None:
    path = write_gguf(tiny_directory, tmp_path / "tiny.gguf")
    from_file, tokenizer = load_target(path, "float32", CPU)
    from_directory, plain = load_target(tiny_directory, "float32", CPU)
    tokens = list(range(20))
    torch.testing.assert_close(logits(from_file, tokens), logits(from_directory, tokens), rtol=1e-4, atol=1e-4)
    assert tokenizer.encode("SELECT é 漢") == plain.encode("SELECT é 漢")


def test_a_directory_with_one_gguf_file_and_nothing_else_is_that_file(tiny_directory: Path, tmp_path: Path) -> None:
    write_gguf(tiny_directory, tmp_path / "tiny.gguf")
    assert load_target(tmp_path, "float32", CPU)[0].layers == 4
    shutil.copy(tmp_path / "tiny.gguf", tmp_path / "other.gguf")
    with pytest.raises(TargetError, match=r"2 GGUF files .*name the one to serve"):
        load_target(tmp_path, "float32", CPU)


def test_weights_that_are_cut_off_are_refused_with_the_path(tiny_directory: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_directory, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(TargetError, match="broken"):
        load_target(broken, "float32", CPU)


def test_missing_weights_are_refused_and_never_filled_with_random_ones(tiny_directory: Path, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    shutil.copytree(tiny_directory, partial)
    tensors = load_file(partial / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TargetError, match=r"lacks 1 of the weights .*model\.layers\.2\.mlp\.up_proj"):
        load_target(partial, "float32", CPU)


def test_the_digest_changes_with_any_file_and_with_nothing_else(tiny_directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_directory, copy)
    digest = target_digest(tiny_directory)
    assert target_digest(copy) == digest
    (copy / ".cache").mkdir()
    (copy / ".lock").write_text("x")
    assert target_digest(copy) == digest
    config = copy / "config.json"
    config.write_text(config.read_text() + "\n")
    assert target_digest(copy) != digest
