"""What goes on the wire comes off it, and what does not belong there is refused at the door."""

import contextlib
import subprocess
import sys

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculator_runtime.traces.codec import decode, encode
from speculator_runtime.traces.errors import TraceError, TraceReason
from speculator_runtime.traces.wire import LAYOUT, peek, replace_header, sampled
from support.trace_samples import make_trace


@given(
    tokens=st.integers(1, 20),
    nodes=st.integers(0, 6),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
@settings(max_examples=60, deadline=None)
def test_a_trace_comes_back_bit_for_bit(tokens, nodes, dtype):
    trace = make_trace(tokens=tokens, nodes=nodes, dtype=dtype)

    back = decode(encode(trace))

    assert back.header == trace.header
    assert set(back.tensors) == set(LAYOUT)
    for name, tensor in trace.tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor), name


def test_tensors_that_were_not_sent_have_no_rows():
    back = decode(encode(make_trace(hidden_size=4)))

    assert back.tensors["tree_tokens"].shape == (0,)
    assert back.tensors["tree_hidden"].shape == (0, 12)


def test_decoded_tensors_own_their_memory():
    data = bytearray(encode(make_trace()))
    back = decode(bytes(data))
    before = back.tensors["tokens"].clone()
    back.tensors["tokens"] += 1

    assert torch.equal(decode(bytes(data)).tensors["tokens"], before)


def changed(**tensors):
    """A good trace on the wire with some tensor entries changed; None removes one."""
    wire = msgspec.msgpack.decode(encode(make_trace(nodes=3)))
    for name, change in tensors.items():
        if change is None:
            del wire["tensors"][name]
        else:
            wire["tensors"].setdefault(name, {}).update(change)
    return msgspec.msgpack.encode(wire)


def with_header(**fields):
    wire = msgspec.msgpack.decode(encode(make_trace()))
    wire["header"].update(fields)
    return msgspec.msgpack.encode(wire)


def int32(*values):
    return {"dtype": "int32", "shape": [len(values)], "data": torch.tensor(values, dtype=torch.int32).numpy().tobytes()}


NAN = {"dtype": "float32", "shape": [5], "data": torch.full((5,), float("nan")).numpy().tobytes()}


@pytest.mark.parametrize(
    ("data", "reason", "says"),
    [
        (b"", TraceReason.NOT_A_TRACE, "not a trace"),
        (b"\x93\x01\x02\x03", TraceReason.NOT_A_TRACE, "not a trace"),
        (with_header(schema_version=2), TraceReason.SCHEMA_VERSION, "this program reads 1"),
        (with_header(prompt_length=0), TraceReason.HEADER, "prompt_length"),
        (with_header(surprise=1), TraceReason.HEADER, "surprise"),
        (with_header(prompt_length=7), TraceReason.LENGTHS, "7 of 6 tokens"),
        (with_header(total_length=7), TraceReason.LENGTHS, "tokens has shape (6,): T is 6 here and 7 before"),
        (with_header(hidden_size=5), TraceReason.LENGTHS, "3H is 12 here and 15 before"),
        (changed(hidden=None), TraceReason.TENSOR_NAMES, "missing tensors ['hidden']"),
        (changed(extra=int32(1)), TraceReason.TENSOR_NAMES, "unknown tensors ['extra']"),
        (changed(tokens={"dtype": "int64"}), TraceReason.TENSOR_DTYPE, "'int64', expected one of int32"),
        (changed(tokens={"shape": [2, 3]}), TraceReason.TENSOR_SHAPE, "expected [T]"),
        (changed(tokens={"data": b"1234"}), TraceReason.TENSOR_SHAPE, "has 4 bytes"),
        (changed(hidden_rows=int32(0, 1)), TraceReason.LENGTHS, "R is 6 here and 2 before"),
        (changed(tree_tokens=int32(1)), TraceReason.LENGTHS, "N is 1 here and 3 before"),
        (changed(tokens=int32(0, 1, 2, 3, 4, 32)), TraceReason.VALUES, "allowed 0 to 31"),
        (changed(hidden_rows=int32(0, 1, 1, 3, 4, 5)), TraceReason.VALUES, "strictly ascending"),
        (changed(tree_parent=int32(-1, 1, 0)), TraceReason.VALUES, "earlier node"),
        (changed(teacher_lse=NAN), TraceReason.VALUES, "teacher_lse holds NaN"),
    ],
)
def test_what_is_wrong_is_refused_with_a_reason_and_never_crashes(data, reason, says):
    with pytest.raises(TraceError) as caught:
        decode(data)

    assert caught.value.reason == reason
    assert says in str(caught.value)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_bytes_are_refused_or_decoded_and_nothing_else(data):
    good = bytearray(encode(make_trace(nodes=2)))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))

    for damaged in (bytes(good), bytes(good[:cut])):
        with contextlib.suppress(TraceError):
            decode(damaged)


def test_a_trace_that_breaks_the_layout_is_not_sent():
    trace = make_trace()
    trace.tensors["tokens"] = trace.tensors["tokens"].long()

    with pytest.raises(TraceError, match="traces carry int32"):
        encode(trace)


def test_another_header_leaves_the_tensors_as_they_are():
    trace = make_trace(nodes=2)
    header = trace.header.model_copy(update={"pod": "engine-0"})

    back = decode(replace_header(encode(trace), header))

    assert peek(encode(back)) == header
    assert all(torch.equal(back.tensors[name], tensor) for name, tensor in trace.tensors.items())


def test_a_share_of_requests_is_the_same_requests_everywhere_and_about_that_many():
    chosen = [n for n in range(4000) if sampled(f"r-{n}", 0.25)]

    assert chosen == [n for n in range(4000) if sampled(f"r-{n}", 0.25)]
    assert 900 < len(chosen) < 1100
    assert all(sampled(f"r-{n}", 1.0) for n in range(100))
    assert not any(sampled(f"r-{n}", 0.0) for n in range(100))


def test_the_agents_side_needs_no_torch():
    code = "import sys, speculator_runtime.traces.forwarder; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
