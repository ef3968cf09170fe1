"""What an update rule is: it keeps states for a parameter, and updates it in place."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

import torch

Scalar = float | torch.Tensor
"""A hyper-parameter: torch takes a tensor of one element where it takes a number."""

NUMBER_DTYPES: Mapping[type, torch.dtype] = MappingProxyType(
    {bool: torch.bool, int: torch.int64, float: torch.float64}
)
"""In what the store keeps a number, whose bits all fit."""

# One array takes 1 MiB: it stays in cache, and a kernel's call costs little beside it.
RUN_ELEMENTS = 1 << 18


class Cutting(Enum):
    """Whether a tensor may be updated one run of elements after the other, to the same bits."""

    NEVER = auto()  # the rule sums over the whole tensor
    AT_NEED = auto()  # one pass over memory as it is
    ALWAYS = auto()  # several passes, whose temporaries stay in cache when the runs are short


@dataclass(frozen=True)
class StateSpec:
    """An array kept for a parameter: `shape` in elements of `dtype`, at first all `fill`.

    With `is_number` the optimizer has a Python number where the store has the array: an int of
    int64, a float of float64, a bool of bool.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: float = 0.0
    is_number: bool = False

    def fits(self, value: object) -> bool:
        """Whether the array can keep the value, to the bit."""
        if self.is_number:
            return NUMBER_DTYPES.get(type(value)) is self.dtype
        if not isinstance(value, torch.Tensor):
            return False
        return (tuple(value.shape), value.dtype) == (self.shape, self.dtype)

    def write(self, array: torch.Tensor, value: Any) -> None:
        """Keep a value that fits, in an array of this kind."""
        if self.is_number:
            array.fill_(value)
        else:
            array.copy_(value)

    def read(self, array: torch.Tensor) -> Any:
        """The number that is kept, or the array itself."""
        return array.item() if self.is_number else array


@lru_cache(maxsize=1 << 12)
def alike(
    names: tuple[str, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[StateSpec, ...]:
    """States that have the shape and the dtype of their weight; an update asks at every step."""
    return tuple(StateSpec(name, shape, dtype) for name in names)


class UpdateRule(Protocol):
    """An optimizer's algorithm with its hyper-parameters as they stand at one step."""

    @property
    def cutting(self) -> Cutting:
        """Whether long tensors may be cut."""

    @property
    def counts(self) -> bool:
        """Whether the optimizer's state `step` is the number of updates, which is kept apart."""

    def states(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """What is kept for a parameter, under torch's names."""

    def apply(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        states: Mapping[str, torch.Tensor],
        num_updates: int,
    ) -> None:
        """Update weight and states in place, for the time `num_updates + 1`.

        The gradient stays, but for an optimizer whose own step writes to it.
        """
