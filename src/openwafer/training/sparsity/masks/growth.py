"""What growing by gradient needs of a dense gradient: few numbers that decide as all would.

RigL grows where the gradient is largest among the units that are not kept once some are dropped.
Those dropped were kept before, so their gradients are among the kept ones. Of all others only the
largest can win, as many as grow. How many grow is known from counts alone, before any gradient, so
a layer's dense gradient shrinks to these numbers as soon as it is complete.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from openwafer.training.sparsity.masks.selection import (
    NOT_ELIGIBLE,
    are_finite,
    count,
    largest,
    magnitudes,
)
from openwafer.training.sparsity.masks.structures import Structure


@dataclass(frozen=True)
class GrowthCandidates:
    """Magnitudes of gradients that growing may choose from.

    Attributes:
        kept: of the kept units, [kept units] in their order.
        positions: of the largest others, int64 [candidates], rising, in [groups, units] flattened.
        others: their magnitudes, [candidates].
        is_finite: whether the whole gradient is.
    """

    kept: Tensor
    positions: Tensor
    others: Tensor
    is_finite: bool

    def scores(self, units: Tensor) -> Tensor:
        """Magnitudes [groups, units] where kept or a candidate, and -1 elsewhere.

        Args:
            units: bool [groups, units], those that were kept when the gradient was taken.
        """
        found = torch.full(units.shape, NOT_ELIGIBLE, dtype=self.kept.dtype, device=units.device)
        found[units] = self.kept.to(units.device)
        found.reshape(-1)[self.positions.to(units.device)] = self.others.to(units.device)
        return found


def growth_candidates(
    gradient: Tensor, mask: Tensor, structure: Structure, num: int
) -> GrowthCandidates:
    """Reduce a dense gradient to what growing may choose from.

    Args:
        gradient: of the loss by every weight, kept or not, summed over all micro-batches.
        mask: of the step that the gradient is of, the gradient's shape.
        num: at most so many units grow in a group.
    """
    units = structure.units_of(mask)
    scores = structure.unit_scores(magnitudes(gradient))
    eligible = scores.masked_fill(units, NOT_ELIGIBLE)
    num_others = (units.shape[1] - count(units)).clamp(max=num)
    is_finite = are_finite(scores)
    # Where it is not finite nothing is decided, and NaN has no place in an order.
    chosen = largest(eligible, num_others) if is_finite else torch.zeros_like(units)
    positions = chosen.reshape(-1).nonzero().reshape(-1)
    return GrowthCandidates(scores[units], positions, scores.reshape(-1)[positions], is_finite)
