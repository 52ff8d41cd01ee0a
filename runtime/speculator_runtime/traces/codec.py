"""Traces as torch tensors, to bytes and back (layout: contracts/trace.py). For engine and trainer: needs torch.

What comes off the wire is checked here once, values included, so that nobody behind this door has to.
"""

import math
from dataclasses import dataclass

import torch

from speculator_runtime.contracts.trace import TraceHeader

from .errors import TraceError, TraceReason
from .wire import LAYOUT, WireTensor, check_layout, pack, unpack

_DTYPES = {
    "int32": torch.int32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Trace:
    """One finished request. A decoded trace has every tensor of the layout; those that were absent have no rows."""

    header: TraceHeader
    tensors: dict[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def encode(trace: Trace) -> bytes:
    """The bytes of a trace; tensors on other devices are copied to the CPU. Raises TraceError for a wrong layout."""
    tensors = {}
    for name, tensor in trace.tensors.items():
        if tensor.dtype not in _NAMES:
            raise TraceError(
                TraceReason.TENSOR_DTYPE,
                f"request {trace.header.request_id}: {name} is {tensor.dtype}, traces carry {', '.join(_DTYPES)}",
            )
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
        tensors[name] = WireTensor(dtype=_NAMES[tensor.dtype], shape=tuple(tensor.shape), data=data)
    check_layout(trace.header, tensors)
    return pack(trace.header, tensors)


def decode(data: bytes | memoryview) -> Trace:
    """A checked trace with tensors of its own memory. Raises TraceError."""
    header, wire = unpack(data)
    tensors = {name: _tensor(wire[name]) if name in wire else _empty(name, header) for name in LAYOUT}
    _check_values(header, tensors)
    return Trace(header, tensors)


def _tensor(wire: WireTensor) -> torch.Tensor:
    dtype = _DTYPES[wire.dtype]
    if math.prod(wire.shape) == 0:
        return torch.empty(wire.shape, dtype=dtype)
    # A bytearray is a copy that torch may own and write to; the message it came from can then go.
    return torch.frombuffer(bytearray(wire.data), dtype=dtype).reshape(wire.shape)


def _empty(name: str, header: TraceHeader) -> torch.Tensor:
    dtypes, shape = LAYOUT[name]
    sizes = [3 * header.hidden_size if symbol == "3H" else 0 for symbol in shape]
    return torch.empty(sizes, dtype=_DTYPES[dtypes[0]])


def _check_values(header: TraceHeader, tensors: dict[str, torch.Tensor]) -> None:
    what = f"request {header.request_id}"
    for name in ("tokens", "teacher_ids", "tree_tokens", "tree_teacher_ids"):
        _check_range(f"{what}: {name}", tensors[name], 0, header.vocab_size)
    for name in ("hidden_rows", "teacher_rows"):
        rows = tensors[name]
        _check_range(f"{what}: {name}", rows, 0, header.total_length)
        if bool((rows[1:] <= rows[:-1]).any()):
            raise TraceError(TraceReason.VALUES, f"{what}: {name} are not strictly ascending")
    parents = tensors["tree_parent"]
    if bool((parents < -1).any()) or bool((parents >= torch.arange(len(parents))).any()):
        raise TraceError(TraceReason.VALUES, f"{what}: a tree node's parent is not -1 or an earlier node")
    for name in ("hidden", "teacher_logits", "teacher_lse", "tree_hidden", "tree_teacher_logits", "tree_teacher_lse"):
        if not bool(torch.isfinite(tensors[name]).all()):
            raise TraceError(TraceReason.VALUES, f"{what}: {name} holds NaN or infinity")


def _check_range(what: str, values: torch.Tensor, low: int, high: int) -> None:
    if values.numel() and (int(values.min()) < low or int(values.max()) >= high):
        raise TraceError(
            TraceReason.VALUES, f"{what} holds {int(values.min())} to {int(values.max())}, allowed {low} to {high - 1}"
        )
