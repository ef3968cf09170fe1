"""A pattern in room that is reserved for it: the bytes stay as many when fewer weights are kept."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from openwafer.diagnostics import error
from openwafer.training.sparsity.packed.form import Form, num_bytes, smallest_form
from openwafer.training.sparsity.packed.pack import pack, unpack
from openwafer.training.sparsity.pattern import Pattern

COUNT_BYTES: Final = 8


@dataclass(frozen=True)
class PackedRoom:
    """Room for patterns of one weight.

    Its bytes are the number of kept positions, little-endian, then the pattern in its form, then
    zeros.

    Attributes:
        form: of the pattern.
        shape: rows and columns of the weight.
        capacity: most positions that are ever kept.
    """

    form: Form
    shape: tuple[int, int]
    capacity: int

    @classmethod
    def smallest(cls, shape: tuple[int, int], capacity: int) -> "PackedRoom":
        """Room in the form that takes the fewest bytes."""
        return cls(smallest_form(shape, capacity), shape, capacity)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the room."""
        return COUNT_BYTES + num_bytes(self.form, self.shape, self.capacity)

    def packed(self, pattern: Pattern) -> Tensor:
        """`uint8 [num_bytes]` on the CPU.

        Raises:
            OpenwaferError: ``sparse-mask`` for a pattern of another shape, or a larger one.
        """
        if pattern.shape != self.shape or pattern.num_kept > self.capacity:
            raise error(
                "sparse-mask",
                f"a mask of {list(pattern.shape)} keeps {pattern.num_kept} positions, and the "
                f"weight of {list(self.shape)} has room for {self.capacity}",
                help="give a mask of the weight's own shape that keeps no more positions",
            )
        room = np.zeros(self.num_bytes, np.uint8)
        room[:COUNT_BYTES].view("<i8")[0] = pattern.num_kept
        found = pack(pattern, self.form)
        room[COUNT_BYTES : COUNT_BYTES + found.size] = found
        return torch.from_numpy(room)

    def pattern(self, packed: Tensor) -> Pattern:
        """The pattern of such bytes on any device.

        Raises:
            OpenwaferError: ``sparse-pattern`` for bytes that are no pattern.
        """
        room = packed.detach().cpu().contiguous().numpy()
        num_kept = int(room[:COUNT_BYTES].copy().view("<i8")[0])
        if room.size != self.num_bytes or not 0 <= num_kept <= self.capacity:
            raise error(
                "sparse-pattern",
                f"{room.size} bytes for {num_kept} kept positions are no pattern of "
                f"{list(self.shape)} with room for {self.capacity}, which takes {self.num_bytes}",
                help="the weights are damaged, or those of another model: take another checkpoint",
            )
        end = COUNT_BYTES + num_bytes(self.form, self.shape, num_kept)
        return unpack(room[COUNT_BYTES:end], self.form, self.shape, num_kept)

    def padded(self, values: Tensor) -> Tensor:
        """`[capacity]`: values `[num_kept]`, then zeros."""
        return torch.cat([values, values.new_zeros(self.capacity - values.numel())])

    def dense(self, values: Tensor, packed: Tensor) -> Tensor:
        """`[rows, columns]`: values `[capacity]` at the kept positions, zeros elsewhere."""
        pattern = self.pattern(packed)
        return pattern.dense(values[: pattern.num_kept])
