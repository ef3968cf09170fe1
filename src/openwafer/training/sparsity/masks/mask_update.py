"""What an update does to a mask, and to the values that are stored for it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MaskUpdate:
    """A mask and how it differs from the one before.

    A weight that an algorithm drops and grows again in the same update stays as it is, with its
    optimizer states, and is in neither `dropped` nor `regrown`; so does the code of RigL's authors
    (``google-research/rigl``, ``reinit_when_same=False``).

    Attributes:
        mask: the new one, bool of the weight's shape.
        dropped: kept before, not now; value and optimizer states are forgotten.
        regrown: kept now, not before; value and optimizer states begin at 0.
        is_rewound: kept weights go back to the values of IMP's `rewind_step`, and their optimizer
            states to 0.
        is_skipped: nothing was decided, since weights or gradient are not finite.
    """

    mask: Tensor
    dropped: Tensor
    regrown: Tensor
    is_rewound: bool = False
    is_skipped: bool = False

    @property
    def num_dropped(self) -> int:
        """Weights that were kept and are not."""
        return int(self.dropped.count_nonzero())

    @property
    def num_regrown(self) -> int:
        """Weights that are kept and were not."""
        return int(self.regrown.count_nonzero())


def update_to(mask: Tensor, new: Tensor, *, is_rewound: bool) -> MaskUpdate:
    """The update that takes `mask` to `new`."""
    return MaskUpdate(new, mask & ~new, new & ~mask, is_rewound)


def no_update(mask: Tensor, *, is_skipped: bool = False) -> MaskUpdate:
    """The update that leaves `mask` as it is."""
    nothing = torch.zeros_like(mask)
    return MaskUpdate(mask, nothing, nothing, is_skipped=is_skipped)


def carried(values: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Values of the mask `before` in the order of the mask `after`, 0 where weights are regrown.

    Args:
        values: [kept before], row-major: weights, or an optimizer state.
        before: bool, any shape.
        after: bool, the same shape.

    Returns:
        [kept after], row-major.
    """
    spread = torch.zeros(before.shape, dtype=values.dtype, device=values.device)
    spread[before] = values
    return spread[after]
