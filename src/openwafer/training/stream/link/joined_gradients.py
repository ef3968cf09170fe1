"""Gradients of weights that are pushed slice by slice, whole again for those who watch."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from openwafer.training.store.layout import RecordLayout
from openwafer.training.store.slices import slice_of
from openwafer.training.stream.device.device import Device


@dataclass(frozen=True)
class JoinedGradient:
    """The gradient of a weight, all slices of which were pushed.

    Attributes:
        name: of the weight.
        whole: in host memory.
        slices: views of it by the names of the slices, which are those of their records, too.
    """

    name: str
    whole: torch.Tensor
    slices: dict[str, torch.Tensor]


class JoinedGradients:
    """Collects slices in host memory until they are complete, one weight at a time or several.

    Args:
        layouts: records, of which those of slices hold one array.
        device: where gradients come from.
    """

    def __init__(self, layouts: Iterable[RecordLayout], device: Device) -> None:
        found = (slice_of(layout.name) for layout in layouts)
        self._num_slices = Counter(one.whole for one in found if one is not None)
        self._device = device
        self._begun: dict[str, JoinedGradient] = {}

    def add(self, name: str, gradient: torch.Tensor, *, is_on_host: bool) -> JoinedGradient | None:
        """Take the gradient of a slice; returns that of its weight when it was the last."""
        found = slice_of(name)
        assert found is not None
        joined = self._begun.get(found.whole)
        if joined is None:
            shape = (self._num_slices[found.whole], *gradient.shape)
            whole = torch.empty(shape, dtype=gradient.dtype)
            joined = self._begun[found.whole] = JoinedGradient(found.whole, whole, {})
        place = joined.slices[name] = joined.whole[found.index]
        if is_on_host:
            place.copy_(gradient)
        else:
            self._device.download(gradient, place, self._device.submitted()).wait()
        return self._begun.pop(found.whole) if len(joined.slices) == len(joined.whole) else None

    def forget(self) -> None:
        """Drop what is not complete."""
        self._begun.clear()
