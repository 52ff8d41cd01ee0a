import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from speculator_runtime.drafter.config import DrafterConfig
from speculator_runtime.drafter.model import Eagle3Drafter
from speculator_runtime.drafter.rope import Rotary

SGLANG_NAMES = {
    "fc.weight",
    "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.k_proj.weight",
    "midlayer.self_attn.v_proj.weight",
    "midlayer.self_attn.o_proj.weight",
    "midlayer.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight",
    "midlayer.mlp.down_proj.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.post_attention_layernorm.weight",
    "norm.weight",
    "lm_head.weight",
}


def rows(count: int, hidden: int = 16, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, count, hidden, generator=generator, dtype=torch.float64) for _ in range(2))


def additive(visible: torch.Tensor) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, float("-inf"))[None, None]


def test_parameters_have_sglangs_names_and_no_embedding(drafter):
    assert set(drafter.state_dict()) == SGLANG_NAMES


def test_row_by_row_with_a_cache_equals_all_rows_at_once(drafter):
    embeds, hidden = rows(6)
    positions = torch.arange(3, 9)[None]
    empty = drafter.empty_cache(1)
    together = drafter(embeds, hidden, positions, empty, empty, additive(torch.ones(6, 6).tril().bool()))
    keys = values = empty
    for t in range(6):
        at = slice(t, t + 1)
        one = drafter(embeds[:, at], hidden[:, at], positions[:, at], keys, values, None)
        keys, values = torch.cat([keys, one.key], 2), torch.cat([values, one.value], 2)
        torch.testing.assert_close(one.logits, together.logits[:, at])
        torch.testing.assert_close(one.hidden, together.hidden[:, at])


def test_tree_nodes_that_see_their_ancestors_only_equal_separate_branches(drafter):
    embeds, hidden = rows(4)
    # 0 -> 1 and 0 -> 2 are siblings at one depth, 3 is below 2.
    positions = torch.tensor([[5, 6, 6, 7]])
    visible = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]).bool()
    empty = drafter.empty_cache(1)
    tree = drafter(embeds, hidden, positions, empty, empty, additive(visible))
    for branch in ([0, 1], [0, 2, 3]):
        mask = additive(torch.ones(len(branch), len(branch)).tril().bool())
        alone = drafter(embeds[:, branch], hidden[:, branch], positions[:, branch], empty, empty, mask)
        torch.testing.assert_close(alone.logits, tree.logits[:, branch])


def test_the_layer_is_llamas_with_a_doubled_input(config, drafter):
    """Against transformers' own attention, norms and MLP, wired as SGLang's LlamaForCausalLMEagle3 wires them."""
    llama = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        rms_norm_eps=1e-5,
        attn_implementation="eager",
    )
    layer = drafter.midlayer
    attention, mlp = LlamaAttention(llama, 0).double(), LlamaMLP(llama).double()
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(attention, name, getattr(layer.self_attn, name))
    for name in ("gate_proj", "up_proj", "down_proj"):
        setattr(mlp, name, getattr(layer.mlp, name))

    def norm(module, x):
        reference = LlamaRMSNorm(16, eps=1e-5).double()
        reference.weight = module.weight
        return reference(x)

    embeds, hidden = rows(5)
    positions = torch.arange(5)[None]
    mask = additive(torch.ones(5, 5).tril().bool())
    rotary = LlamaRotaryEmbedding(llama)(hidden, positions)
    both = torch.cat([norm(layer.input_layernorm, embeds), norm(layer.hidden_norm, hidden)], -1)
    middle = hidden + attention(both, position_embeddings=rotary, attention_mask=mask)[0]
    expected = middle + mlp(norm(layer.post_attention_layernorm, middle))

    got = drafter(embeds, hidden, positions, drafter.empty_cache(1), drafter.empty_cache(1), mask)
    torch.testing.assert_close(got.hidden, expected, rtol=1e-5, atol=1e-5)  # transformers' norm rounds to float32
    logits = norm(drafter.norm, expected) @ drafter.lm_head.weight.T
    torch.testing.assert_close(got.logits, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ],
)
def test_rotary_embedding_is_the_targets(scaling):
    parameters = {"rope_theta": 5000.0, **(scaling or {"rope_type": "default"})}
    llama = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=256, rope_parameters=parameters
    )
    ours = DrafterConfig(64, 64, 4, 4, 16, 50, 20, (0, 1, 2), 1e-5, 5000.0, scaling, 256)
    positions = torch.tensor([[0, 1, 7, 200]])
    cos, sin = Rotary(ours)(positions, torch.float32)
    expected = LlamaRotaryEmbedding(llama)(torch.zeros(1, 4, 64), positions)
    torch.testing.assert_close(cos[:, 0], expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sin[:, 0], expected[1], rtol=1e-6, atol=1e-6)


def test_only_used_slots_get_logits(config):
    drafter = Eagle3Drafter(config, used=7)
    drafter.reset(seed=0)
    embeds, hidden = rows(2)
    empty = drafter.empty_cache(1)
    step = drafter(embeds.float(), hidden.float(), torch.arange(2)[None], empty, empty, None)
    assert step.logits.shape == (1, 2, 7)


def test_a_seed_fixes_the_weights(config):
    first, same, other = (Eagle3Drafter(config) for _ in range(3))
    for drafter, seed in ((first, 1), (same, 1), (other, 2)):
        drafter.reset(seed)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not torch.equal(first.fc.weight, other.fc.weight)
