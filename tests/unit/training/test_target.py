import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from speculator_runtime.training.target import TargetTensorsError, load_target_tensors
from support.tiny_target import make_tiny_target


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def target(made, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    return tmp_path


def rewrite(target, change):
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")


def test_only_the_ends_of_the_target_are_read(target):
    tensors = load_file(target / "model.safetensors")
    loaded = load_target_tensors(target)
    assert torch.equal(loaded.embedding, tensors["model.embed_tokens.weight"])
    assert torch.equal(loaded.norm, tensors["model.norm.weight"])
    assert torch.equal(loaded.head, tensors["lm_head.weight"])


def test_the_ends_may_lie_in_a_file_of_their_own_or_behind_an_index(target):
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    ends = {k: v for k, v in tensors.items() if "layers" not in k}
    save_file(ends, target / "ends.safetensors")
    assert torch.equal(load_target_tensors(target / "ends.safetensors").norm, tensors["model.norm.weight"])
    save_file({"model.layers.0.x": torch.ones(1)}, target / "other.safetensors")
    (target / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(ends, "ends.safetensors")})
    )
    assert torch.equal(load_target_tensors(target).head, tensors["lm_head.weight"])


def test_a_tied_head_is_the_embedding(target):
    rewrite(target, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(TargetTensorsError, match="does not tie it"):
        load_target_tensors(target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    loaded = load_target_tensors(target)
    assert loaded.head is loaded.embedding


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / "config.json").unlink(), "was the target fetched"),
        (lambda d: (d / "config.json").write_text("{"), "config.json"),
        (lambda d: (d / "model.safetensors").unlink(), "set target_embedding"),
        (lambda d: (d / "model.safetensors").write_bytes(b"x" * 40), "not a whole safetensors file"),
        (lambda d: rewrite(d, lambda t: t.pop("model.norm.weight")), "no tensor model.norm.weight"),
        (lambda d: rewrite(d, lambda t: t.update({"model.norm.weight": torch.ones(3)})), "different checkpoints"),
        (lambda d: rewrite(d, lambda t: t["model.norm.weight"].fill_(torch.nan)), "NaN or infinity"),
    ],
)
def test_what_is_wrong_with_a_target_is_said(target, damage, words):
    damage(target)
    with pytest.raises(TargetTensorsError, match=words):
        load_target_tensors(target)
