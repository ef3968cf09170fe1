"""The form of a weight that holds many experts: each slice along its first dim is stored by itself.

The slices are what streams, and only those that the layer's code asks for. The code finds a
:class:`~openwafer.training.stream.forms.expert_view.ExpertView` in the weight's place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from openwafer.training.store.layout import slice_name
from openwafer.training.stream.forms.expert_view import ExpertView
from openwafer.training.stream.forms.weight_form import Bring, DenseForm, WeightForm


class ByExpert:
    """A weight [experts, ...] whose experts are stored one by one; see :class:`WeightForm`.

    The plain loop's gradient of such a weight is one array: where any expert has a gradient the
    others have zeros, and are updated. A use of one expert adds zeros to the gradients of all
    others, which turns a negative zero there into a positive one.

    Attributes:
        name: of the weight in the model.
        names: of the slices.
        is_counting: whether uses are noted.
        followers: weights of which the code will use the same experts next.
        refuses_whole: whether a use of all experts together raises
            :class:`~openwafer.training.stream.forms.expert_view.UsedWholeError`.
        num_rows: rows that grouped products of this pass have multiplied.
        is_grouped: whether the weight was used in this pass, and by grouped products alone.
    """

    def __init__(self, name: str, weight: nn.Parameter) -> None:
        self.name = name
        self.weight = weight
        self.stored: Mapping[str, nn.Parameter] = {
            slice_name(name, index): nn.Parameter(part, requires_grad=weight.requires_grad)
            for index, part in enumerate(weight.detach())
        }
        self.names = tuple(self.stored)
        self.followers: tuple[ByExpert, ...] = ()
        self.is_counting = False
        self.refuses_whole = False
        self.num_rows = 0
        self._num_uses = self._num_products = 0
        self._num_uses_of: Counter[str] = Counter()

    def seen(self, bring: Bring) -> object:
        """See :class:`WeightForm`."""
        return ExpertView(self, bring)

    def slice_of(self, index: int) -> nn.Parameter:
        """The parameter of an expert; a negative index counts from the last."""
        return self.stored[self.names[index]]

    def wanted(self, experts: Sequence[int]) -> list[str]:
        """The slices that a use of these experts will want, those of followers behind its own."""
        return [form.names[index] for form in (self, *self.followers) for index in experts]

    def begin_pass(self) -> None:
        """Forget which experts were used."""
        self.num_rows = self._num_uses = self._num_products = 0
        self._num_uses_of.clear()

    @property
    def is_grouped(self) -> bool:
        """See above."""
        return 0 < self._num_uses == self._num_products

    def note_rows(self, num_rows: int) -> None:
        """The layer's code multiplies so many rows in one grouped product."""
        if self.is_counting:
            self.num_rows += num_rows
            self._num_products += 1

    def note_use(self, experts: Sequence[int]) -> None:
        """The layer's code uses these experts in one operation on the weight."""
        if self.is_counting:
            self._num_uses += 1
            self._num_uses_of.update(self.names[index] for index in experts)

    @property
    def used(self) -> frozenset[str]:
        """The slices that were used in this pass."""
        return frozenset(self._num_uses_of)

    def add_zeros_of_others(self, name: str, gradient: torch.Tensor) -> None:
        """Add to a slice's gradient, in place, what uses of other experts would add to it."""
        if self._num_uses > self._num_uses_of[name]:
            gradient.add_(0.0)

    def without_gradient(self, arrived: Iterable[str]) -> tuple[str, ...]:
        """See :class:`WeightForm`."""
        has_one = set(arrived)
        return tuple(name for name in self.names if has_one and name not in has_one)


def forms_of(model: nn.Module, by_expert: Iterable[str]) -> dict[str, WeightForm]:
    """The form of every parameter of a model.

    Args:
        model: names the parameters.
        by_expert: those whose experts are stored one by one.
    """
    sliced = set(by_expert)
    return {
        name: ByExpert(name, weight) if name in sliced else DenseForm.of(name, weight)
        for name, weight in model.named_parameters()
    }
