"""What is on disk after the agent, or its machine, died at any moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculator_runtime.agent import journal as journal_module
from speculator_runtime.agent.journal import Journal
from speculator_runtime.contracts.plan import LoadStatus, Plan, VersionRef, VersionState
from support.samples import make_block


@pytest.fixture
def open_journal(tmp_path):
    return lambda: Journal(tmp_path, "uid-a")


def test_blocks_and_plan_are_there_after_a_restart(open_journal):
    first = open_journal()
    first.save_plan(Plan(generation=4))
    for index in range(3):
        first.append(make_block(index, generation=4))

    again = open_journal()

    assert again.load_plan() == Plan(generation=4)
    assert again.read(4, after=0) == [make_block(1, generation=4), make_block(2, generation=4)]
    assert again.next_index(4) == 3
    assert again.next_index(5) == 0


def test_without_a_file_there_is_no_plan_and_one_that_cannot_be_read_is_none(open_journal, tmp_path):
    assert open_journal().load_plan() is None
    (tmp_path / "agent" / "plan.json").write_text('{"schema_version": 2}')
    assert open_journal().load_plan() is None


def test_an_index_is_never_used_twice(open_journal):
    journal = open_journal()
    journal.append(make_block(0))

    with pytest.raises(ValueError, match="block 0 of generation 1 was emitted already"):
        journal.append(make_block(0))


@given(cut=st.integers(0, 10_000))
def test_a_kill_while_a_block_is_written_loses_that_block_only(tmp_path_factory, cut):
    root = tmp_path_factory.mktemp("journal")
    journal = Journal(root, "uid-a")
    for index in range(3):
        journal.append(make_block(index))
    (path,) = (root / "agent" / "blocks" / "uid-a").iterdir()
    data = path.read_bytes()
    cut %= len(data) + 1
    path.write_bytes(data[:cut])

    again = Journal(root, "uid-a")
    whole = data[:cut].count(b"\n")

    assert again.read(1, after=-1) == [make_block(index) for index in range(whole)]
    again.append(make_block(whole))
    assert Journal(root, "uid-a").read(1, after=-1) == [make_block(index) for index in range(whole + 1)]


def test_another_pod_on_the_same_files_begins_afresh(open_journal, tmp_path):
    open_journal().append(make_block(0))

    assert Journal(tmp_path, "uid-b").next_index(1) == 0


def test_old_generations_go_and_blocks_dropped_unread_are_counted(open_journal, monkeypatch):
    monkeypatch.setattr(journal_module, "KEEP_GENERATIONS", 2)
    monkeypatch.setattr(journal_module, "KEEP_BLOCKS", 10)
    journal = open_journal()
    for generation in (1, 2, 3):
        journal.append(make_block(0, generation=generation))
    assert journal.read(1, after=-1) == []

    journal.read(3, after=2)
    for index in range(1, 11):
        journal.append(make_block(index, generation=3))

    assert [block.index for block in journal.read(3, after=-1)] == list(range(5, 11))
    assert journal.blocks_lost_unread == 2
    assert [block.index for block in open_journal().read(3, after=-1)] == list(range(5, 11))


def test_refusals_survive(open_journal):
    state = VersionState(
        ref=VersionRef(version=1, sha256="a" * 64), status=LoadStatus.REFUSED, reason="NotFinite", message="NaN"
    )
    open_journal().save_refusals([state])

    assert open_journal().load_refusals() == [state]
