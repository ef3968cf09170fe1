"""Runs the updates of a step on tensors without memory, to learn which operators they call."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from openwafer.training.store.layout import ArraySpec, Part, RecordLayout
from openwafer.training.stream.link.updates import UpdateCounts, Updater
from openwafer.training.stream.plan.dry_run import faked
from openwafer.training.stream.plan.operators import Calls, CallsByKind, CountingMeter, Operator
from openwafer.training.torch_private import FakeTensorMode

# Any that is not 1, at which gradients need not be multiplied.
CLIPPING = 0.5

_Shape = tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...] | None], ...]


class _HollowRecord:
    """The arrays of a record, without memory under a fake tensor mode."""

    def __init__(self, layout: RecordLayout) -> None:
        self._specs = {
            (place.spec.name, part): place.spec
            for part, places in layout.parts.items()
            for place in places
        }

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """See :class:`~openwafer.training.stream.link.updates.Arrays`."""
        return _empty(self._specs[array_name, part])


def _empty(spec: ArraySpec) -> torch.Tensor:
    # Bits that stand for elements must not stand for others than there are.
    if not spec.shape:
        # A count that a rule may compute with, on the host.
        return torch.ones((), dtype=spec.dtype)
    array = spec.empty()
    return array if spec.dtype.is_floating_point else array.zero_()


def update_calls(
    layouts: Mapping[str, RecordLayout],
    received: Collection[str],
    updater: Updater,
    *,
    clips: bool,
) -> CallsByKind:
    """The calls of all updates of a step.

    Args:
        layouts: the records; of those that are alike one is updated.
        received: parameters that get a gradient.
        updater: the rules; its counts are as before.
        clips: whether gradients are multiplied first.
    """
    alike: dict[object, list[RecordLayout]] = {}
    for layout in layouts.values():
        alike.setdefault(_shapes(layout), []).append(layout)
    total: dict[Operator, Calls] = {}
    for first, *others in alike.values():
        each = _calls_of(first, frozenset(received), updater, CLIPPING if clips else 1.0)
        for kind, calls in each.items():
            known = total.setdefault(kind, replace(calls, number=0))
            known.number += calls.number * (1 + len(others))
    return total


def _shapes(layout: RecordLayout) -> tuple[_Shape, ...]:
    return tuple(
        tuple(
            (place.spec.dtype, place.spec.shape, place.spec.strides) for place in layout.parts[part]
        )
        for part in (Part.WEIGHTS, Part.STATES)
    )


def _calls_of(
    layout: RecordLayout, received: Collection[str], updater: Updater, coefficient: float
) -> CallsByKind:
    weights = [place.spec for place in layout.parts[Part.WEIGHTS] if place.spec.name in received]

    def walk(mode: FakeTensorMode | None) -> CallsByKind:
        del mode
        gradients = {weight.name: _empty(weight) for weight in weights}
        counts = updater.counts
        # A first update is not like those that follow.
        ones = dict.fromkeys(gradients, 1)
        updater.counts = UpdateCounts(1, ones, dict(ones))
        meter = CountingMeter()
        try:
            with torch.no_grad(), meter:
                updater.apply(_HollowRecord(layout), gradients, updater.this_step(coefficient))
        finally:
            updater.counts = counts
        return meter.take_calls()

    return faked(walk)
