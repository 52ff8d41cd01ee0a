import pytest
import torch

from speculator_runtime.training.resume import ResumeError, ResumeState, newest_state, read_state, write_state


def state(sequence):
    return ResumeState(sequence, {"a": torch.full((3,), float(sequence))}, {"step": sequence})


def test_a_state_reads_back_as_it_was(tmp_path):
    folder = write_state(tmp_path, state(1))
    again = read_state(folder)
    assert torch.equal(again.tensors["a"], torch.ones(3))
    assert (again.sequence, again.scalars) == (1, {"step": 1})


def test_the_newest_counts_and_the_one_before_is_kept(tmp_path):
    for i in (1, 2, 3, 4):
        write_state(tmp_path, state(i))
    assert newest_state(tmp_path).sequence == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state-00000003", "state-00000004"]


def test_a_folder_that_is_being_uploaded_stays(tmp_path):
    first = write_state(tmp_path, state(1))
    for i in (2, 3):
        write_state(tmp_path, state(i), keep=first)
    assert first.is_dir()


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "state.safetensors").write_bytes((f / "state.safetensors").read_bytes()[:-1]),
        lambda f: (f / "state.safetensors").unlink(),
        lambda f: (f / "state.json").write_text('{"schema_version": 1, '),
        lambda f: (f / "state.json").unlink(),
    ],
    ids=["cut", "no tensors", "half JSON", "no JSON"],
)
def test_a_damaged_state_is_passed_over_for_the_one_before(tmp_path, damage):
    write_state(tmp_path, state(1))
    damage(write_state(tmp_path, state(2)))
    with pytest.raises(ResumeError):
        read_state(tmp_path / "state-00000002")
    assert newest_state(tmp_path).sequence == 1


def test_a_write_that_was_killed_leaves_nothing_that_counts(tmp_path):
    write_state(tmp_path, state(1))
    partial = tmp_path / ".state-00000002.partial"
    partial.mkdir()
    (partial / "state.safetensors").write_bytes(b"half")
    assert newest_state(tmp_path).sequence == 1
    write_state(tmp_path, state(2))
    assert newest_state(tmp_path).sequence == 2


def test_nothing_there_is_no_state(tmp_path):
    assert newest_state(tmp_path / "nowhere") is None
