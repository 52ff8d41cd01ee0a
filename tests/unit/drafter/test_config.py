import pytest

from speculator_runtime.contracts.settings import DrafterSettings
from speculator_runtime.drafter.config import DrafterConfig, UnsupportedTarget, capture_layers

SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000, "rope_type": "default"},
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("layers", "captured"),
    [
        (32, (2, 16, 29)),
        (30, (2, 15, 27)),
        (8, (2, 4, 5)),
        (7, (2, 3, 4)),
        (6, (0, 3, 5)),
        (3, (0, 1, 2)),
        (2, (0, 1, 1)),
        (1, (0, 0, 0)),
    ],
)
def test_layers_follow_sglang_and_stay_inside_tiny_targets(layers, captured):
    assert capture_layers(layers) == captured


@pytest.mark.parametrize("layers", range(3, 100))
def test_captured_layers_are_distinct_and_ascending(layers):
    low, middle, high = capture_layers(layers)
    assert 0 <= low < middle < high < layers


def test_shape_comes_from_the_target_unless_the_settings_say_otherwise():
    plain = DrafterConfig.from_target(SMOLLM2, DrafterSettings(draft_vocab_size=4096))
    assert (plain.head_dim, plain.num_attention_heads, plain.num_key_value_heads) == (64, 9, 3)
    assert (plain.draft_vocab_size, plain.rope_theta, plain.eos_token_ids) == (4096, 100000.0, (2,))
    narrow = DrafterConfig.from_target(SMOLLM2, DrafterSettings(intermediate_size=512, num_attention_heads=3))
    assert (narrow.intermediate_size, narrow.num_attention_heads, narrow.num_key_value_heads) == (512, 3, 3)


def test_a_draft_vocabulary_larger_than_the_targets_is_all_of_it():
    config = DrafterConfig.from_target(SMOLLM2, DrafterSettings(draft_vocab_size=100_000))
    assert config.draft_vocab_size == 49152
    assert config.full_vocabulary


def test_both_spellings_of_rope_give_the_same_drafter():
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    old = {k: v for k, v in SMOLLM2.items() if k != "rope_parameters"}
    a = DrafterConfig.from_target(old | {"rope_theta": 5e5, "rope_scaling": scaled}, DrafterSettings())
    b = DrafterConfig.from_target(SMOLLM2 | {"rope_parameters": scaled | {"rope_theta": 5e5}}, DrafterSettings())
    assert a == b


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "hidden_size=None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope'"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_a_target_it_cannot_follow_is_refused_by_name(change, words):
    with pytest.raises(UnsupportedTarget, match=words):
        DrafterConfig.from_target(SMOLLM2 | change, DrafterSettings())


def test_impossible_head_counts_say_which_setting_to_change():
    with pytest.raises(UnsupportedTarget, match=r"drafter\.num_attention_heads"):
        DrafterConfig.from_target(SMOLLM2, DrafterSettings(num_attention_heads=4, num_key_value_heads=3))
