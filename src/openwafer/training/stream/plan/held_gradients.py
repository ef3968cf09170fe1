"""Gradients of whole sparse weights, which some steps make beside those that they push.

They are held from the first backward that adds to them until the weight's gradient is complete: as
long as a layer's backward lasts where weights stream, to the end of the step where they stay. A
plan sets memory aside for them in every step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from openwafer.training.stream.layers import PINNED, Partition


@dataclass(frozen=True)
class HeldGradients:
    """What the whole gradients take.

    Attributes:
        by_weight: device bytes of each, by the name of its weight.
        host_bytes: most that is kept of all of them in host memory, to the end of the step.
    """

    by_weight: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int = 0

    def while_streaming(self, split: Partition) -> int:
        """Device bytes of the layer that has most, and of weights that stay, which come last."""
        by_record = {
            record: sum(self.by_weight.get(name, 0) for name in names)
            for record, names in split.records.items()
        }
        pinned = by_record.pop(PINNED, 0)
        return pinned + max(by_record.values(), default=0) + self._made

    @property
    def while_resident(self) -> int:
        """Device bytes of all of them."""
        return sum(self.by_weight.values()) + self._made

    def more_while_resident(self, split: Partition) -> int:
        """What they take beyond :meth:`while_streaming` then."""
        return self.while_resident - self.while_streaming(split)

    @property
    def _made(self) -> int:
        """Of one that is being added to the others."""
        return max(self.by_weight.values(), default=0)
