"""Text as tokens come: whole characters, stop strings."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from speculator_runtime.engines.reference.prompts import TargetTokenizer
from speculator_runtime.engines.reference.text import TextStream


@pytest.fixture(scope="module")
def tokenizer(tiny_directory: Path) -> TargetTokenizer:
    return TargetTokenizer(AutoTokenizer.from_pretrained(tiny_directory), 320, 0)


def pieces(stream: TextStream, tokens: list[int]) -> list[str]:
    """What is shown after each token, and at the end."""
    shown = []
    for token in tokens:
        used = stream.push([token])
        shown.append(stream.take())
        if used < 1 or stream.stopped_by is not None:
            break
    stream.finish()
    shown.append(stream.take(final=True))
    return shown


@given(text=st.text(max_size=30))
def test_pieces_add_up_to_the_text_and_no_piece_splits_a_character(tokenizer: TargetTokenizer, text: str) -> None:
    shown = pieces(TextStream(tokenizer, tokenizer.encode("x")), tokenizer.encode(text))
    assert "".join(shown) == text
    assert all("\ufffd" not in piece for piece in shown) or "\ufffd" in text


@settings(max_examples=400)
@example(tokens=[129, 0, 97])  # a special token in the middle of a character
@given(tokens=st.lists(st.integers(0, 319), max_size=30))
def test_pieces_of_any_tokens_add_up_to_what_decoding_them_at_once_gives(
    tokenizer: TargetTokenizer, tokens: list[int]
) -> None:
    shown = pieces(TextStream(tokenizer, tokenizer.encode("x")), tokens)
    assert "".join(shown) == tokenizer.decode(tokens)


def test_a_character_of_several_tokens_appears_when_its_last_token_comes(tokenizer: TargetTokenizer) -> None:
    tokens = tokenizer.encode("漢")
    assert len(tokens) == 3
    assert pieces(TextStream(tokenizer, []), tokens) == ["", "", "漢", ""]


def test_a_prompt_that_ends_within_a_character_does_not_leak_into_the_output(tokenizer: TargetTokenizer) -> None:
    prompt = tokenizer.encode("漢")[:2]
    assert "".join(pieces(TextStream(tokenizer, prompt), tokenizer.encode("ok"))) == "ok"


def test_a_stop_string_cuts_the_text_before_it(tokenizer: TargetTokenizer) -> None:
    stream = TextStream(tokenizer, [], ("END", "zzz"))
    assert "".join(pieces(stream, tokenizer.encode("some text END more"))) == "some text "
    assert stream.stopped_by == "END"


def test_push_says_at_which_token_the_stop_string_was_complete(tokenizer: TargetTokenizer) -> None:
    stream = TextStream(tokenizer, [], ("b",))
    tokens = tokenizer.encode("a") + tokenizer.encode("b") + tokenizer.encode("c")
    assert stream.push(tokens) == 2
    assert stream.text == "a"


def test_what_could_begin_a_stop_string_is_not_shown_before_it_is_known(tokenizer: TargetTokenizer) -> None:
    stream = TextStream(tokenizer, [], ("EN!",))
    for token in tokenizer.encode("x") + tokenizer.encode("E") + tokenizer.encode("N"):
        stream.push([token])
    assert stream.take() == "x"
    stream.push(tokenizer.encode("D"))
    assert stream.take() == "END"


def test_the_earliest_of_two_stop_strings_counts(tokenizer: TargetTokenizer) -> None:
    stream = TextStream(tokenizer, [], ("cd", "bc"))
    stream.push(tokenizer.encode("abcd"))
    assert (stream.text, stream.stopped_by) == ("a", "bc")


def test_bytes_that_never_become_a_character_do_not_hold_the_text_back(tokenizer: TargetTokenizer) -> None:
    broken = tokenizer.encode("漢")[0]
    stream = TextStream(tokenizer, [], ("stop",))
    stream.push([*tokenizer.encode("a"), *[broken] * 5])
    assert stream.take() == "a" + "\ufffd" * 4
    assert stream.push([*tokenizer.encode("stop"), *[broken] * 3]) == len(tokenizer.encode("stop"))
