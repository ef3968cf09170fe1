"""Tells which layers of a model are alike, and spares a dry run the operators of most of them.

Layers are alike whose calls ran the same operators in the same order on tensors of the same kinds,
and which stand between such layers. A search walks the first and the last of them. Each of the
others passes its input on, and its forward leaves as many bytes to the backward as the first one's.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from openwafer.training.plan_record import Activations
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.stream.execute.pass_watch import TensorForm
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.plan.operators import CountingMeter
from openwafer.training.torch_private import pytree


class CallForm(NamedTuple):
    """A layer's call that can be skipped.

    Attributes:
        operators: a hash of their kinds, in their order.
        passed: form of its only tensor result, which is that of its first tensor argument, too.
        leaf: number of that result among the leaves of what it returns.
        tree: of those leaves.
    """

    operators: int
    passed: TensorForm
    leaf: int
    tree: pytree.TreeSpec


def like_earlier_ones(
    names: Sequence[str], forms: Mapping[str, CallForm], policies: Mapping[str, Activations]
) -> dict[str, str]:
    """The layers that need not be walked, each with the first of those that it is like.

    Args:
        names: of the layers in the order of their calls.
        forms: of those that can be skipped.
        policies: what becomes of their activations.
    """
    kinds = [(forms.get(name, name), policies.get(name)) for name in names]
    places = list(zip([None, *kinds], kinds, [*kinds[1:], None], strict=False))
    first = {place: index for index, place in reversed(list(enumerate(places)))}
    last = {place: index for index, place in enumerate(places)}
    return {
        names[index]: names[first[place]]
        for index, place in enumerate(places)
        if first[place] < index < last[place] and names[index] in forms
    }


def with_one_array(
    split: Partition, layouts: Mapping[str, RecordLayout], skipped: Collection[str]
) -> tuple[Partition, Mapping[str, RecordLayout]]:
    """Records as large as before, of which those of skipped layers hold their last array alone.

    Where no operator is called, views of the others would be made for nothing.
    """
    few = {
        name: replace(layout, parts={part: places[-1:] for part, places in layout.parts.items()})
        for name, layout in layouts.items()
        if name in skipped
    }
    last = {name: (layout.parts[Part.WEIGHTS][0].spec.name,) for name, layout in few.items()}
    return Partition(split.layers, {**split.records, **last}), {**layouts, **few}


class LayerCalls:
    """Sees the calls of layers in a dry run, and answers those of skipped layers.

    Args:
        meter: of the run.
        skipped: names of layers, each with that of an earlier one that it is like.
    """

    def __init__(self, meter: CountingMeter, skipped: Mapping[str, str]) -> None:
        self.skipped = skipped
        self._meter = meter
        self._forms: dict[str, set[CallForm | None]] = {}
        self._visit: list[str] = []
        # Of walked layers: what a call leaves, and the leaves of what the last one returned.
        self._left_bytes: dict[str, int] = {}
        self._returned: dict[str, list[Any]] = {}

    def __call__(self, layer: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a layer, or answer for it."""
        self._visit.append(layer)
        given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if layer in self.skipped:
            return self._pass_on(self.skipped[layer], given[0])
        self._meter.operators_hash = 0
        out = function(*args, **kwargs)
        form = self._form_of(layer, given, out)
        self._forms.setdefault(layer, set()).add(form)
        return out

    def end_visit(self, left_bytes: int) -> None:
        """The calls of a layer by all micro-batches are over, and have left so many bytes."""
        if self._visit:
            self._left_bytes[self._visit[-1]] = left_bytes // len(self._visit)
            self._visit.clear()

    def forms(self, visits: Sequence[str]) -> dict[str, CallForm]:
        """The form of every layer that was visited once and can be skipped."""
        found = {name: _only(self._forms.get(name, ())) for name in visits}
        return {name: form for name, form in found.items() if form and visits.count(name) == 1}

    def _form_of(self, layer: str, given: Sequence[torch.Tensor], out: object) -> CallForm | None:
        leaves, tree = pytree.tree_flatten(out)
        found = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if len(found) != 1 or not given:
            return None
        passed = _form_of(leaves[found[0]])
        if not passed.requires_grad or passed != _form_of(given[0]):
            return None
        leaves[found[0]] = None
        self._returned[layer] = leaves
        return CallForm(self._meter.operators_hash, passed, found[0], tree)

    def _pass_on(self, like: str, given: torch.Tensor) -> Any:
        form = _only(self._forms[like])
        assert form is not None
        left = [torch.empty(self._left_bytes[like], dtype=torch.uint8, device=given.device)]
        out = given.view_as(given)
        # A backward that has come here has taken what the forward left.
        out.register_hook(lambda _: left.clear())
        leaves = list(self._returned[like])
        leaves[form.leaf] = out
        return pytree.tree_unflatten(leaves, form.tree)


def _form_of(tensor: torch.Tensor) -> TensorForm:
    return TensorForm(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)


def _only(forms: Collection[CallForm | None]) -> CallForm | None:
    return next(iter(forms)) if len(forms) == 1 else None
