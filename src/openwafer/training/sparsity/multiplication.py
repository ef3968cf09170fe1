"""How a packed weight is multiplied: as the dense weight, or by products that skip its zeros."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import torch
from torch import Tensor

from openwafer.training.sparsity.packed.room import PackedRoom

FEW_TOKENS: Final = 64
LOW_SPARSITY: Final = 0.7
"""With fewer tokens or zeros, products that skip zeros gain little or lose: see the journal."""


class Products(StrEnum):
    """How a run multiplies by sparse weights.

    ``dense`` spreads a weight out and gives the bits of masked dense training; ``sparse`` skips
    zeros, with the same bits for any number of threads; ``auto`` skips them by a rule; ``measured``
    where that was faster when it was tried on this machine.
    """

    AUTO = "auto"
    DENSE = "dense"
    SPARSE = "sparse"
    MEASURED = "measured"


@dataclass(frozen=True)
class Skipping:
    """When products with a weight skip its zeros.

    Attributes:
        from_tokens: fewest tokens with which they do; ``None``: never.
        gain: how many times faster than dense ones they were, if they were tried.
    """

    from_tokens: int | None
    gain: float | None = None

    @classmethod
    def by_rule(cls, room: PackedRoom) -> "Skipping":
        """Where it is likely to be faster on any machine."""
        rows, columns = room.shape
        sparsity = 1 - room.capacity / (rows * columns)
        return cls(FEW_TOKENS if sparsity >= LOW_SPARSITY else None)


class GradientWatcher(Protocol):
    """Wants to see gradients of dense weights in some steps."""

    @property
    def is_wanted(self) -> bool:
        """Whether this step is one of them."""

    def __call__(self, gradient: Tensor, packed: Tensor) -> None:
        """The gradient of the dense weight, `[rows, columns]`, and the bytes of its pattern."""


@dataclass(eq=False)
class Multiplication:
    """How to multiply by one packed weight.

    Attributes:
        room: of the pattern.
        is_turned: whether the map is ``inputs @ weight``, where the weight is `[features,
            outputs]`, and not ``inputs @ weight.T``.
        skipping: when products skip zeros, on the CPU with 32-bit floats; others never do.
        watcher: told the gradients of the dense weight, one for each backward.
    """

    room: PackedRoom
    is_turned: bool
    skipping: Skipping
    watcher: GradientWatcher | None = None

    @property
    def wants_gradient(self) -> bool:
        """Whether somebody watches in this step."""
        return self.watcher is not None and self.watcher.is_wanted

    @property
    def num_outputs(self) -> int:
        """Features of an output."""
        return self.room.shape[1 if self.is_turned else 0]

    def skips_zeros(self, inputs: Tensor, values: Tensor) -> bool:
        """Whether products with these inputs, `[..., features]`, skip zeros."""
        fewest = self.skipping.from_tokens
        can = inputs.device.type == "cpu" and values.dtype is torch.float32 and inputs.numel() > 0
        return can and fewest is not None and inputs.shape[:-1].numel() >= fewest

    def gradient_of_weight(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of the dense weight, of `[tokens, features]` and `[tokens, outputs]`."""
        return inputs.t().mm(gradient) if self.is_turned else gradient.t().mm(inputs)
