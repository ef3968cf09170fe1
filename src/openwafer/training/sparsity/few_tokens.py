"""Products of packed weights with a few tokens, where no gradients follow: those of writing texts.

A weight is read once for each token, so that time goes with its bytes: no index of blocks pays, and
the pattern itself is one. To unpack it takes longer than to multiply, so it can be kept from token
to token; whether it is changes no bit.
"""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openwafer.training.sparsity.compiled import compiled
from openwafer.training.sparsity.multiplication import Multiplication
from openwafer.training.sparsity.packed.room import PackedRoom
from openwafer.training.sparsity.pattern import Pattern, column_dtype
from openwafer.training.torch_private import FakeTensor

MOST_TOKENS: Final = 8
SUMS: Final = 4
"""Of each output, which the processor adds to in turn."""

Floats = NDArray[np.float32]


class FewTokens:
    """How a module multiplies a few tokens while its model writes.

    Args:
        weight: the products of the module.

    Attributes:
        keeps_pattern: whether the next pattern that is unpacked is kept; a pattern with other bytes
            takes its place.
    """

    def __init__(self, weight: Multiplication) -> None:
        self.keeps_pattern = False
        self._weight = weight
        self._kept: tuple[Tensor, Pattern] | None = None

    @property
    def kept_bytes(self) -> int:
        """Most bytes that the kept pattern takes, with the packed one that it is known by."""
        return pattern_bytes(self._weight.room)

    def takes(self, inputs: Tensor, values: Tensor) -> bool:
        """Whether these inputs, `[..., features]`, are multiplied here."""
        is_here = inputs.device.type == "cpu" and inputs.dtype == values.dtype == torch.float32
        is_real = not isinstance(inputs, FakeTensor) and not torch.is_grad_enabled()
        return is_here and is_real and 1 <= inputs.shape[:-1].numel() <= MOST_TOKENS

    def multiply(
        self, inputs: Tensor, values: Tensor, packed: Tensor, bias: Tensor | None
    ) -> Tensor:
        """`[..., outputs]`, as the products that skip zeros, with sums in another order."""
        pattern = self._pattern(packed)
        output = inputs.new_zeros(*inputs.shape[:-1], self._weight.num_outputs)
        multiply = _multiply_turned if self._weight.is_turned else _multiply
        rows = inputs.detach().reshape(-1, inputs.shape[-1]).contiguous().numpy()
        sums = output.view(len(rows), -1).numpy()
        multiply(pattern.row_starts, pattern.columns, values.detach().numpy(), rows, sums)
        return output if bias is None else output.add_(bias)

    def _pattern(self, packed: Tensor) -> Pattern:
        if self._kept is not None and torch.equal(self._kept[0], packed):
            return self._kept[1]
        found = self._weight.room.pattern(packed)
        self._kept = (packed.clone(), found) if self.keeps_pattern else None
        return found


def pattern_bytes(room: PackedRoom) -> int:
    """Bytes of the most positions that a room is for, unpacked and packed."""
    rows, columns = room.shape
    return 8 * (rows + 1) + column_dtype(columns).itemsize * room.capacity + room.num_bytes


@compiled
def _multiply(
    starts: NDArray[np.int64], columns: NDArray[Any], values: Floats, inputs: Floats, sums: Floats
) -> None:
    for token in range(inputs.shape[0]):
        given = inputs[token]
        for row in range(starts.size - 1):
            place, end = starts[row], starts[row + 1]
            one = two = three = four = np.float32(0)
            while place + SUMS <= end:
                one += values[place] * given[columns[place]]
                two += values[place + 1] * given[columns[place + 1]]
                three += values[place + 2] * given[columns[place + 2]]
                four += values[place + 3] * given[columns[place + 3]]
                place += SUMS
            while place < end:
                one += values[place] * given[columns[place]]
                place += 1
            sums[token, row] = (one + two) + (three + four)


@compiled
def _multiply_turned(
    starts: NDArray[np.int64], columns: NDArray[Any], values: Floats, inputs: Floats, sums: Floats
) -> None:
    for token in range(inputs.shape[0]):
        for row in range(starts.size - 1):
            factor = inputs[token, row]
            for place in range(starts[row], starts[row + 1]):
                sums[token, columns[place]] += values[place] * factor
