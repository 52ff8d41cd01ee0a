"""What is built from a Speculator, side by side: golden/NAME/input.yaml and output.yaml."""

import os

import pytest

from support.golden import CASES, dump, load


@pytest.mark.parametrize("name", CASES)
def test_objects_are_those_of_the_golden_file(name: str) -> None:
    golden = load(name)
    built = dump(golden.build())
    if os.environ.get("UPDATE_GOLDEN"):
        golden.output.write_text(built)
    assert golden.output.read_text() == built, "differs; if that is wanted: UPDATE_GOLDEN=1, and read the diff"
