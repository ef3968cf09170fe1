"""What a form of a weight says to the trunk, and the plain form: one array, as the model has it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from torch import nn

MOST_AHEAD: Final = 8

Bring = Callable[[Sequence[str]], None]
"""Brings the first of these stored arrays to the device, in the place of older ones.

Up to :data:`MOST_AHEAD` others, which may be wanted next, are on their way then, if there is room.
"""


class WeightForm(Protocol):
    """A weight of a model, and what the trunk streams in its place.

    The trunk stores, moves, clips and updates the stored parameters; it knows none of the model's
    own where the two differ.

    Attributes:
        weight: the model's own parameter.
        stored: the parameters that stream, by the names of their arrays in the store.
    """

    @property
    def weight(self) -> nn.Parameter:
        """See above."""

    @property
    def stored(self) -> Mapping[str, nn.Parameter]:
        """See above."""

    def seen(self, bring: Bring) -> object:
        """What the layer's code finds in the weight's place while it runs."""

    def without_gradient(self, arrived: Iterable[str]) -> tuple[str, ...]:
        """The stored parameters whose gradients are zero, given those of which one has arrived."""


@dataclass(frozen=True)
class DenseForm:
    """A weight that is stored and seen as it is; see :class:`WeightForm`."""

    weight: nn.Parameter
    stored: Mapping[str, nn.Parameter]

    @classmethod
    def of(cls, name: str, weight: nn.Parameter) -> "DenseForm":
        """The form of the weight of that name."""
        return cls(weight, {name: weight})

    def seen(self, bring: Bring) -> object:
        """See :class:`WeightForm`: the layer brings the weight itself, before its code runs."""
        return self.weight

    def without_gradient(self, arrived: Iterable[str]) -> tuple[str, ...]:
        """See :class:`WeightForm`: autograd makes the gradient, or the weight has none."""
        return ()
