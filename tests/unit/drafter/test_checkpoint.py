import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from speculator_runtime.contracts.control import RefusalReason
from speculator_runtime.drafter.checkpoint import (
    CheckpointRefused,
    live_digest,
    load_into,
    read_checkpoint,
    save_checkpoint,
    state_digest,
)
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.vocabulary import VocabularyMap


@pytest.fixture
def vocabulary(config):
    return VocabularyMap.initial(config.vocab_size, config.draft_vocab_size, first=range(7, 16))


@pytest.fixture
def saved(tmp_path, config, vocabulary):
    drafter = Eagle3Drafter(config, vocabulary.used)
    drafter.reset(seed=5)
    digest = save_checkpoint(tmp_path, drafter, vocabulary)
    return tmp_path, drafter, digest


def rewrite(directory, change):
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_a_checkpoint_loads_back_bit_equal(saved, config, vocabulary):
    directory, drafter, digest = saved
    checkpoint = read_checkpoint(directory, config, digest)
    other = Eagle3Drafter(config)
    load_into(other, checkpoint)
    assert other.used == vocabulary.used
    for (name, a), (_, b) in zip(drafter.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert live_digest(other, checkpoint.vocabulary.d2t()) == live_digest(drafter, vocabulary.d2t())


def test_the_digest_is_of_the_file(saved):
    directory, _, digest = saved
    assert hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest() == digest


def test_the_file_is_what_sglang_loads(saved, config):
    directory, _, _ = saved
    tensors = load_file(directory / "model.safetensors")
    assert not any("embed" in name for name in tensors)
    assert (tensors["d2t"].dtype, tensors["d2t"].shape) == (torch.int64, (20,))
    assert (tensors["t2d"].dtype, tensors["t2d"].shape) == (torch.bool, (50,))
    stored = json.loads((directory / "config.json").read_text())
    assert stored["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (stored["num_hidden_layers"], stored["draft_vocab_size"], stored["tie_word_embeddings"]) == (1, 20, False)


def test_free_rows_are_silent_in_the_file(saved, vocabulary):
    directory, drafter, _ = saved
    with torch.no_grad():
        drafter.lm_head.weight[vocabulary.used :] = 100.0
    save_checkpoint(directory, drafter, vocabulary)
    head = load_file(directory / "model.safetensors")["lm_head.weight"]
    torch.testing.assert_close(head[vocabulary.used :], head[: vocabulary.used].mean(0).expand(11, -1))


def test_live_digest_sees_every_weight_and_the_map(saved, vocabulary):
    _, drafter, _ = saved
    before = live_digest(drafter, vocabulary.d2t())
    seen = {before}
    for parameter in drafter.parameters():
        with torch.no_grad():
            parameter.view(-1)[-1] += 1
        seen.add(live_digest(drafter, vocabulary.d2t()))
    seen.add(live_digest(drafter, vocabulary.d2t() + 1))
    assert len(seen) == 2 + len(list(drafter.parameters()))


def test_a_narrow_checkpoint_has_the_digest_of_the_wide_drafter_it_was_loaded_into(saved, config, vocabulary):
    directory, drafter, _ = saved
    save_checkpoint(directory, drafter, vocabulary, torch.bfloat16)
    checkpoint = read_checkpoint(directory, config)
    wide = Eagle3Drafter(config)
    load_into(wide, checkpoint)
    d2t = checkpoint.vocabulary.d2t()
    assert live_digest(wide, d2t) == state_digest(checkpoint.state.items(), d2t)


BAD = {
    "missing tensor": (
        lambda t: t.pop("lm_head.weight"),
        RefusalReason.TENSOR_NAMES,
        "missing: \\['lm_head.weight'\\]",
    ),
    "unknown tensor": (lambda t: t.update(x=torch.ones(1)), RefusalReason.TENSOR_NAMES, "unknown: \\['x'\\]"),
    "embedding": (
        lambda t: t.update({"embed_tokens.weight": torch.ones(50, 16)}),
        RefusalReason.TENSOR_NAMES,
        "embed_tokens is the target's own",
    ),
    "shape": (lambda t: t.update({"fc.weight": torch.ones(16, 47)}), RefusalReason.TENSOR_SHAPES, "fc.weight"),
    "dtype": (lambda t: t.update({"d2t": t["d2t"].int()}), RefusalReason.TENSOR_DTYPES, "d2t is torch.int32"),
    "double": (lambda t: t.update({"fc.weight": t["fc.weight"].double()}), RefusalReason.TENSOR_DTYPES, "fc.weight"),
    "nan": (lambda t: t["norm.weight"].__setitem__(3, float("nan")), RefusalReason.NOT_FINITE, "norm.weight"),
    "map": (lambda t: t["t2d"].fill_(True), RefusalReason.VOCABULARY_MAP, "t2d marks 50 tokens"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_checkpoint_is_refused_with_its_reason(saved, config, case):
    directory, _, _ = saved
    change, reason, words = BAD[case]
    rewrite(directory, change)
    with pytest.raises(CheckpointRefused, match=words) as refused:
        read_checkpoint(directory, config)
    assert refused.value.reason is reason


def test_a_changed_file_is_refused_before_it_is_parsed(saved, config):
    directory, _, digest = saved
    (directory / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointRefused, match="fetch it again") as refused:
        read_checkpoint(directory, config, digest)
    assert refused.value.reason is RefusalReason.DIGEST_MISMATCH


def test_a_cut_file_is_corrupt(saved, config):
    directory, _, _ = saved
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointRefused, match="not a whole safetensors file") as refused:
        read_checkpoint(directory, config)
    assert refused.value.reason is RefusalReason.CORRUPT


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_missing_file_is_named(saved, config, name):
    directory, _, _ = saved
    (directory / name).unlink()
    with pytest.raises(CheckpointRefused, match=name) as refused:
        read_checkpoint(directory, config)
    assert refused.value.reason is RefusalReason.MISSING


@pytest.mark.parametrize(
    ("field", "value"), [("vocab_size", 51), ("speculator_capture_layers", [2, 15, 27]), ("num_attention_heads", 8)]
)
def test_a_checkpoint_of_another_target_is_refused(saved, config, field, value):
    directory, _, _ = saved
    stored = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(stored | {field: value}))
    with pytest.raises(CheckpointRefused, match="another drafter") as refused:
        read_checkpoint(directory, config)
    assert refused.value.reason is RefusalReason.TENSOR_SHAPES


def test_a_drafter_that_is_not_finite_is_never_written(tmp_path, config, vocabulary):
    drafter = Eagle3Drafter(config)
    drafter.reset(seed=0)
    with torch.no_grad():
        drafter.fc.weight[0, 0] = float("inf")
    with pytest.raises(CheckpointRefused):
        save_checkpoint(tmp_path / "version", drafter, vocabulary)
    assert not (tmp_path / "version" / "model.safetensors").exists()
