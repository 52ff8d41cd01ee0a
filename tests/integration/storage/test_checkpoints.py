"""The trainer's resume state on a real S3 server."""

import pytest

from speculator_runtime.storage import (
    CorruptObjectError,
    Ledger,
    fetch_checkpoint,
    put_checkpoint,
    read_checkpoint,
)


def write(directory, text):
    directory.mkdir(exist_ok=True)
    (directory / "optimiser.safetensors").write_text(text)
    return directory


def test_without_a_checkpoint_there_is_none_to_resume_from(store, tmp_path):
    assert fetch_checkpoint(Ledger(store), tmp_path / "in") is None


def test_the_last_checkpoint_comes_back_with_its_labels(store, tmp_path):
    put_checkpoint(Ledger(store), write(tmp_path / "out", "one"), {"step": "1"})
    put_checkpoint(Ledger(store), write(tmp_path / "out", "two"), {"step": "2"})

    pointer = fetch_checkpoint(Ledger(store), tmp_path / "in")

    assert pointer is not None
    assert pointer.labels == {"step": "2"}
    assert (tmp_path / "in" / "optimiser.safetensors").read_text() == "two"


def test_a_put_that_dies_before_the_pointer_leaves_the_old_checkpoint(store, tmp_path, monkeypatch):
    put_checkpoint(Ledger(store), write(tmp_path / "out", "one"))
    ledger = Ledger(store)
    upload = ledger.store.upload

    def die_after_upload(*arguments):
        upload(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger.store, "upload", die_after_upload)
    with pytest.raises(KeyboardInterrupt):
        put_checkpoint(ledger, write(tmp_path / "out", "two"))

    fetch_checkpoint(Ledger(store), tmp_path / "in")
    assert (tmp_path / "in" / "optimiser.safetensors").read_text() == "one"


def test_old_checkpoints_go_but_the_one_before_stays_for_a_reader_under_way(store, tmp_path):
    ledger = Ledger(store)
    pointers = [put_checkpoint(ledger, write(tmp_path / "out", str(n))) for n in range(4)]

    assert ledger.store.folders("checkpoints/") == sorted(p.id for p in pointers[-2:])


def test_a_damaged_pointer_says_what_to_do(store):
    ledger = Ledger(store)
    ledger.store.put("checkpoints/current.json", b"{")

    with pytest.raises(CorruptObjectError, match=r"checkpoints/current\.json.*delete it to start training afresh"):
        read_checkpoint(ledger)
