"""Evidence as bytes."""

import random

import pytest

from speculator_runtime.storage import CorruptObjectError, evidence_sha256
from speculator_runtime.storage.evidence import decode_blocks, encode_blocks, parse_part_name, part_name
from support.samples import make_block


def test_the_digest_does_not_depend_on_order_or_repetition():
    blocks = [make_block(i, generation=g) for g in (1, 2) for i in range(5)]
    shuffled = [*blocks, blocks[3]]
    random.Random(1).shuffle(shuffled)

    assert evidence_sha256(shuffled) == evidence_sha256(blocks)
    assert evidence_sha256(blocks[:-1]) != evidence_sha256(blocks)


def test_blocks_survive_the_way_to_bytes_and_back():
    blocks = [make_block(i) for i in range(3)]

    assert decode_blocks(encode_blocks(blocks), "part") == blocks


def test_a_line_that_is_no_block_is_named():
    with pytest.raises(CorruptObjectError, match="part, line 2"):
        decode_blocks(encode_blocks([make_block(0)]) + b'{"index": 1}\n', "part")


def test_part_names_say_which_blocks_they_begin_with():
    name = part_name(7, "4c1f-22-aa", 12)

    assert parse_part_name(name) == ("4c1f-22-aa", 7, 12)
    assert parse_part_name("notes.txt") is None
