import pytest

from speculator_runtime.contracts.settings import TrainingConfig
from speculator_runtime.training.buffer import SampleBuffer
from speculator_runtime.training.intake import Intake
from speculator_runtime.training.sample import UnusableTrace, from_trace


@pytest.fixture
def intake(config):
    return Intake(config, 99, SampleBuffer(TrainingConfig()))


def held(intake):
    return intake._buffer.occupancy().samples


def test_a_usable_trace_is_kept_and_its_output_goes_to_the_vocabulary(intake, make_trace):
    assert intake.accept(make_trace(prompt=4, total=10))
    assert (intake.received, intake.accepted, held(intake)) == (1, 1, 1)
    assert [t.numel() for t in intake.outputs] == [6]


def test_an_opted_out_request_leaves_nothing_behind(intake, make_trace):
    assert not intake.accept(make_trace(opt_out=True))
    assert (intake.opted_out, held(intake), len(intake.outputs)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": 8}, "OtherShape"),
        ({"vocab": 60}, "OtherShape"),
        ({"prompt": 9, "total": 10}, "NothingSupervised"),
        ({"teacher_rows": []}, "NothingSupervised"),
        ({"hidden_rows": []}, "NothingSupervised"),
    ],
)
def test_what_cannot_be_trained_on_is_counted_by_its_reason(intake, make_trace, change, reason):
    assert not intake.accept(make_trace(**change))
    assert (intake.refused, intake.dropped, held(intake)) == ({reason: 1}, 1, 0)


def test_samples_of_another_target_are_never_taken_for_the_current_ones(intake, make_trace):
    assert intake.accept(make_trace(target_digest="a"))
    assert not intake.accept(make_trace(target_digest="b"))
    intake.expected_target = "b"
    assert intake.accept(make_trace(target_digest="b"))
    assert not intake.accept(make_trace(target_digest="a"))
    assert intake.refused == {"OtherTarget": 2}


def test_a_long_request_keeps_its_last_positions(make_trace):
    sample = from_trace(make_trace(prompt=4, total=30), max_length=10)
    assert (sample.start, sample.hidden.shape[0]) == (20, 9)
    assert sample.nbytes < from_trace(make_trace(prompt=4, total=30), max_length=99).nbytes


def test_a_cut_that_leaves_no_supervised_row_says_so(make_trace):
    with pytest.raises(UnusableTrace, match="leave no row to train on"):
        from_trace(make_trace(prompt=4, total=30, teacher_rows=[3, 4, 5]), max_length=10)
