"""The traffic generator's own reading of a tokenizer, held against transformers."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from speculator_runtime.traffic.prompts import builtin
from speculator_runtime.traffic.records import TrafficError
from speculator_runtime.traffic.tokenize import TargetTokenizer
from support.tiny_target import make_tiny_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"), layers=1, hidden=8, heads=1, kv_heads=1)


def test_chat_prompts_are_the_same_tokens_as_transformers_makes(target: Path) -> None:
    ours, theirs = TargetTokenizer(target), AutoTokenizer.from_pretrained(target)
    for prompt in builtin("sql")[:20]:
        message = [{"role": "user", "content": prompt.prompt}]
        expected = theirs.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert ours.chat(prompt.prompt) == list(expected)


def test_without_a_chat_template_the_text_itself_is_sent(target: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((target / "tokenizer.json").read_bytes())
    ours = TargetTokenizer(tmp_path)
    assert ours.chat("SELECT name") == ours.encode("SELECT name")


def test_a_directory_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match=r"holds no tokenizer\.json"):
        TargetTokenizer(tmp_path)
