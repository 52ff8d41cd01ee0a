"""Key-value cache of the batch: one slot of preallocated rows per request, several requests in one forward.

Running requests occupy slots 0..B-1 without holes, so that a step reads `[0:B, 0:visible]` as a view and copies
nothing but its own new rows. Rows a step wrote and did not commit are simply overwritten by the next one: a slot's
length is kept by its request, never here.

Sizes: S slots, L rows a slot, Hkv key-value heads, Dh head dimension, B sequences, N new rows a sequence.
"""

import numpy as np
import torch
from torch import Tensor


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose pages the operating system commits on first touch (CPU), so that unused rows cost no memory.

    Zeros and not `empty`: masked rows are multiplied by a weight of 0, and 0 x NaN is NaN.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = np.zeros(int(np.prod(shape)) * size, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


class SlotCache:
    """Keys and values `[layers, 2, S, L, Hkv, Dh]`."""

    def __init__(
        self, layers: int, slots: int, rows: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = slots
        self.rows = rows
        self.data = lazy_zeros((layers, 2, slots, rows, heads, head_dim), dtype, device)
        self._by_layer = [(self.data[i, 0], self.data[i, 1]) for i in range(layers)]
        self._flat_by_layer = [(k.view(slots * rows, heads, head_dim), v.view(slots * rows, heads, head_dim))
                               for k, v in self._by_layer]  # fmt: skip
        self._flat = self.data.view(layers * 2, slots * rows, heads, head_dim)

    def window(self, first: int, lengths: list[int], new: int) -> "StepWindow":
        """A step of `new` rows a sequence on slots first..first+B-1 that hold `lengths` rows each."""
        return StepWindow(self, first, lengths, new)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, views [S, L, Hkv, Dh]."""
        return self._by_layer[index]

    def flat_layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, views [S * L, Hkv, Dh]."""
        return self._flat_by_layer[index]

    def gather_rows(self, sources: list[int], targets: list[int]) -> None:
        """Copy rows (flat indices, slot * L + row) in all layers at once; all are read before any is written."""
        index = torch.tensor([sources, targets], device=self.data.device)
        self._flat[:, index[1]] = self._flat[:, index[0]]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` rows of one slot over another's."""
        self.data[:, :, target, :length] = self.data[:, :, source, :length]


class StepWindow:
    """What a forward of the target sees of the cache: transformers' attention calls `update` as on its own caches."""

    def __init__(self, cache: SlotCache, first: int, lengths: list[int], new: int) -> None:
        self._cache = cache
        self._first = first
        self._count = len(lengths)
        self._lengths = lengths
        self._new = new
        self.visible = max(lengths) + new
        if self.visible > cache.rows:
            raise ValueError(f"a step needs {self.visible} rows, a slot has {cache.rows}; this is a bug in admission")
        self._index: Tensor | None = None
        if self._count > 1:
            starts = torch.tensor([(first + i) * cache.rows + n for i, n in enumerate(lengths)])
            self._index = (starts[:, None] + torch.arange(new)).flatten().to(cache.data.device)

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write new rows [B, Hkv, N, Dh]; returns keys and values [B, Hkv, visible, Dh] as views."""
        cache = self._cache
        keys, values = cache.layer(layer_idx)
        if self._index is None:
            start = self._lengths[0]
            keys[self._first, start : start + self._new] = key[0].transpose(0, 1)
            values[self._first, start : start + self._new] = value[0].transpose(0, 1)
        else:
            flat_keys, flat_values = cache.flat_layer(layer_idx)
            flat_keys.index_copy_(0, self._index, key.transpose(1, 2).flatten(0, 1))
            flat_values.index_copy_(0, self._index, value.transpose(1, 2).flatten(0, 1))
        rows = slice(self._first, self._first + self._count)
        return keys[rows, : self.visible].transpose(1, 2), values[rows, : self.visible].transpose(1, 2)
