"""Finds writes to saved tensors that torch does not count, such as those to ``tensor.data``.

In a plain loop a backward finds what was written last. A layer that offloads what it saves, or runs
again, would find what was there before. Torch refuses a write that the tensor's own version counter
counts; another counter of the same memory tells it nothing.
"""

import weakref
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.weak import TensorWeakRef

from openwafer.training.stream.device.saved_weights import Geometry
from openwafer.training.stream.execute.activations import counted_by

UNCOUNTED: Final = "it writes to what it has saved in a way that torch does not count (tensor.data)"
"""Why such a layer cannot run again."""


class _Saved(NamedTuple):
    layer: str
    storage: weakref.ref[torch.UntypedStorage]
    counted: TensorWeakRef
    seen: Geometry


class UncountedWrites:
    """Knows what layers have saved, and sees writes to it that nobody counts.

    Attributes:
        layers: whose activations are right only where they are kept.
    """

    def __init__(self) -> None:
        self.layers: dict[str, None] = {}
        self._saved: dict[int, list[_Saved]] = {}

    def note_saved(self, layer: str, tensor: torch.Tensor) -> None:
        """A layer that does not keep what it saves has saved this."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        saved = _Saved(
            layer, weakref.ref(storage), TensorWeakRef(counted_by(tensor)), Geometry.of(tensor)
        )
        self._saved.setdefault(storage._cdata, []).append(saved)

    def note_write(self, tensor: torch.Tensor) -> None:
        """An operator is about to write to this."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        for saved in self._saved.get(storage._cdata, ()):
            is_counted = saved.counted() is counted_by(tensor)
            if saved.storage() is storage and not is_counted and _overlap(saved.seen, tensor):
                self.layers[saved.layer] = None


def _overlap(seen: Geometry, tensor: torch.Tensor) -> bool:
    # Nothing is read or written there: it is memory that the system has not given out.
    room = np.empty(tensor.untyped_storage().nbytes(), np.uint8)
    one, other = (_laid_out(room, each) for each in (seen, Geometry.of(tensor)))
    return np.shares_memory(one, other)


def _laid_out(room: NDArray[np.uint8], seen: Geometry) -> NDArray[np.void]:
    item = seen.dtype.itemsize
    strides = tuple(stride * item for stride in seen.stride)
    return np.ndarray(seen.size, np.dtype(f"V{item}"), room.data, seen.offset * item, strides)
