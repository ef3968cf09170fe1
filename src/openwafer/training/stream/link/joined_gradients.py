"""Gradients of weights that are pushed slice by slice, whole again for those who watch."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from openwafer.training.store.layout import Part, RecordLayout, slice_of, whole_name
from openwafer.training.stream.device.device import Device


@dataclass(frozen=True)
class JoinedGradient:
    """The gradient of a weight, all slices of which were pushed.

    Attributes:
        name: of the weight.
        whole: in host memory.
        slices: views of it by the names of the slices, which are those of their records, too.
        zeros: the slices that came as zeros.
    """

    name: str
    whole: torch.Tensor
    slices: dict[str, torch.Tensor] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)

    def gradient_of(self, name: str) -> torch.Tensor | None:
        """A slice as watchers have left it; ``None`` for one that is zero still."""
        part = self.slices[name]
        # By its bits: a watcher may have made negative zeros.
        is_zero = name in self.zeros and not part.view(torch.uint8).any()
        return None if is_zero else part


class JoinedGradients:
    """Collects slices in host memory until they are complete, one weight at a time or several.

    Args:
        layouts: records, of which those of slices hold one array.
        device: where gradients come from.
    """

    def __init__(self, layouts: Iterable[RecordLayout], device: Device) -> None:
        self._specs = {
            layout.name: layout.parts[Part.WEIGHTS][0].spec
            for layout in layouts
            if slice_of(layout.name) is not None
        }
        self._num_slices = Counter(map(whole_name, self._specs))
        self._device = device
        self._begun: dict[str, JoinedGradient] = {}

    def add(self, name: str, gradient: torch.Tensor | None) -> JoinedGradient | None:
        """Take the gradient of a slice; returns that of its weight when it was the last.

        Args:
            name: of the slice.
            gradient: on the device; ``None`` is zeros.
        """
        found = slice_of(name)
        assert found is not None
        joined = self._begun.get(found.whole)
        if joined is None:
            spec = self._specs[name]
            whole = torch.empty((self._num_slices[found.whole], *spec.shape), dtype=spec.dtype)
            joined = self._begun[found.whole] = JoinedGradient(found.whole, whole)
        place = joined.slices[name] = joined.whole[found.index]
        if gradient is None:
            joined.zeros.add(name)
            place.zero_()
        else:
            self._device.download(gradient, place, self._device.submitted()).wait()
        return self._begun.pop(found.whole) if len(joined.slices) == len(joined.whole) else None

    def forget(self) -> None:
        """Drop what is not complete."""
        self._begun.clear()
