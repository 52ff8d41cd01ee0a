"""The bytes of a trace, without torch: what travels, how to look at its header only, and what must hold of its shapes.

The agent needs no more than this; engine and trainer use `codec`, which turns the tensors into torch's.
Layout: contracts/trace.py.
"""

import hashlib
import math
from collections.abc import Mapping

import msgspec
from pydantic import ValidationError

from speculator_runtime.contracts.trace import TraceHeader

from .errors import TraceError, TraceReason

SCHEMA_VERSION = 1
ITEM_BYTES = {"int32": 4, "bfloat16": 2, "float16": 2, "float32": 4}
FLOATS = ("bfloat16", "float16", "float32")
INT = ("int32",)
LSE = ("float32",)

# Name -> allowed dtypes, shape in symbols. `3H` is fixed by the header; T, R, Q, k, N, M, K by the first that has them.
# M is N, or 0 where the policy keeps the nodes but not their rows.
LAYOUT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tokens": (INT, ("T",)),
    "hidden_rows": (INT, ("R",)),
    "hidden": (FLOATS, ("R", "3H")),
    "teacher_rows": (INT, ("Q",)),
    "teacher_ids": (INT, ("Q", "k")),
    "teacher_logits": (FLOATS, ("Q", "k")),
    "teacher_lse": (LSE, ("Q",)),
    "tree_step": (INT, ("N",)),
    "tree_position": (INT, ("N",)),
    "tree_parent": (INT, ("N",)),
    "tree_tokens": (INT, ("N",)),
    "tree_hidden": (FLOATS, ("M", "3H")),
    "tree_teacher_ids": (INT, ("M", "K")),
    "tree_teacher_logits": (FLOATS, ("M", "K")),
    "tree_teacher_lse": (LSE, ("M",)),
}
REQUIRED = tuple(name for name in LAYOUT if not name.startswith("tree_"))


class WireTensor(msgspec.Struct, forbid_unknown_fields=True):
    """A tensor as it travels: row-major little-endian items of `dtype`."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    header: msgspec.Raw
    tensors: msgspec.Raw


_wire = msgspec.msgpack.Decoder(_Wire)
_map = msgspec.msgpack.Decoder(dict[str, object])
_tensors = msgspec.msgpack.Decoder(dict[str, WireTensor])
_encoder = msgspec.msgpack.Encoder()


def pack(header: TraceHeader, tensors: Mapping[str, WireTensor]) -> bytes:
    """The bytes of a trace. Checks nothing: `codec.encode` does."""
    return _encoder.encode({"header": header.model_dump(mode="json"), "tensors": dict(tensors)})


def peek(data: bytes | memoryview) -> TraceHeader:
    """The header alone; the tensors are skipped, not decoded. Raises TraceError."""
    return _read_header(_split(data).header)


def replace_header(data: bytes | memoryview, header: TraceHeader) -> bytes:
    """The same trace under another header; the tensors are copied as they are. Raises TraceError."""
    return _encoder.encode({"header": header.model_dump(mode="json"), "tensors": _split(data).tensors})


def unpack(data: bytes | memoryview) -> tuple[TraceHeader, dict[str, WireTensor]]:
    """Header and tensors, their names, dtypes, shapes and lengths checked. The tensors' data point into `data`.

    Raises TraceError.
    """
    wire = _split(data)
    header = _read_header(wire.header)
    try:
        tensors = _tensors.decode(wire.tensors)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(TraceReason.NOT_A_TRACE, f"request {header.request_id}: tensors: {error}") from error
    check_layout(header, tensors)
    return header, tensors


def check_layout(header: TraceHeader, tensors: Mapping[str, WireTensor]) -> None:
    """Names, dtypes, shapes and byte lengths against LAYOUT and the header. Raises TraceError."""
    what = f"request {header.request_id}"
    missing = [name for name in REQUIRED if name not in tensors]
    unknown = [name for name in tensors if name not in LAYOUT]
    if missing or unknown:
        raise TraceError(TraceReason.TENSOR_NAMES, f"{what}: missing tensors {missing}, unknown tensors {unknown}")
    if header.prompt_length > header.total_length:
        raise TraceError(
            TraceReason.LENGTHS,
            f"{what}: the prompt has {header.prompt_length} of {header.total_length} tokens in all",
        )
    sizes = {"3H": 3 * header.hidden_size, "T": header.total_length}
    for name, (dtypes, shape) in LAYOUT.items():
        if name in tensors:
            _check_tensor(f"{what}: {name}", tensors[name], dtypes, shape, sizes)
    nodes, rows = sizes.get("N", 0), sizes.get("M", 0)
    if rows not in (0, nodes):
        raise TraceError(TraceReason.LENGTHS, f"{what}: {nodes} tree nodes but {rows} rows of tree tensors")


def _check_tensor(
    what: str, tensor: WireTensor, dtypes: tuple[str, ...], shape: tuple[str, ...], sizes: dict[str, int]
) -> None:
    if tensor.dtype not in dtypes:
        raise TraceError(TraceReason.TENSOR_DTYPE, f"{what} is {tensor.dtype!r}, expected one of {', '.join(dtypes)}")
    if len(tensor.shape) != len(shape) or any(size < 0 for size in tensor.shape):
        raise TraceError(TraceReason.TENSOR_SHAPE, f"{what} has shape {tensor.shape}, expected [{', '.join(shape)}]")
    for symbol, size in zip(shape, tensor.shape, strict=True):
        expected = sizes.setdefault(symbol, size)
        if size != expected:
            raise TraceError(
                TraceReason.LENGTHS, f"{what} has shape {tensor.shape}: {symbol} is {size} here and {expected} before"
            )
    expected_bytes = math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
    if tensor.data.nbytes != expected_bytes:
        raise TraceError(
            TraceReason.TENSOR_SHAPE,
            f"{what} has {tensor.data.nbytes} bytes, {tensor.dtype} of shape {tensor.shape} has {expected_bytes}",
        )


def _split(data: bytes | memoryview) -> _Wire:
    try:
        return _wire.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(TraceReason.NOT_A_TRACE, f"not a trace ({len(data)} bytes): {error}") from error


def _read_header(raw: msgspec.Raw) -> TraceHeader:
    try:
        fields = _map.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(TraceReason.NOT_A_TRACE, f"not a trace: header: {error}") from error
    version = fields.get("schema_version")
    if version != SCHEMA_VERSION:
        raise TraceError(
            TraceReason.SCHEMA_VERSION,
            f"trace of schema version {version!r}, this program reads {SCHEMA_VERSION}: run engine, agent and trainer "
            "of one release",
        )
    try:
        return TraceHeader.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise TraceError(
            TraceReason.HEADER, f"trace header: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error


def sampled(request_id: str, share: float) -> bool:
    """Whether a request belongs to a share of all: the same answer for the same request, everywhere."""
    draw = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big") / 2**64
    return draw < share
