"""What the executor asks of the host side, and the stand-in that plans use."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from openwafer.training.stream.device_weights import DeviceWeights
from openwafer.training.stream.schedule import Action


class HostLink(Protocol):
    """The host side of the link: where weights come from and gradients go.

    Fetches are served in the order of :meth:`fetch`; :meth:`complete` waits for one of them.
    """

    def begin_pass(self, actions: Sequence[Action]) -> None:
        """A pass over these actions begins; reads may run ahead of them."""

    def advance(self, position: int) -> None:
        """The walker has reached that action: move the read-ahead on, take up finished reads."""

    def fetch(self, record: str, slot: torch.Tensor, *, keeps_loan: bool) -> None:
        """Begin to bring a record's weights into a device slot (uint8 [bytes])."""

    def complete(self, record: str) -> None:
        """Return once the record's fetch is visible to compute."""

    def push(self, record: str, gradients: Mapping[str, torch.Tensor]) -> None:
        """Take the gradients of a record, by parameter name, from the device."""

    def end_pass(self) -> None:
        """The backward pass is over: every gradient of the pass has been pushed."""

    def abandon(self) -> None:
        """The pass failed: forget what is under way and the gradients it brought."""


class DryLink:
    """Moves nothing: fetched weights are whatever the slot holds, gradients are forgotten.

    Args:
        weights: set to fill the slots with small random weights instead.
        overlaps: whether pushed gradients stay on the device until the next push, as they may
            where copies run beside compute.

    Attributes:
        received: names of the parameters whose gradients were pushed, in that order.
    """

    def __init__(self, weights: DeviceWeights | None = None, *, overlaps: bool = False) -> None:
        self.received: list[str] = []
        self._weights = weights
        self._overlaps = overlaps
        self._leaving: Mapping[str, torch.Tensor] = {}

    def begin_pass(self, actions: Sequence[Action]) -> None:
        """See :class:`HostLink`."""

    def advance(self, position: int) -> None:
        """See :class:`HostLink`."""

    def fetch(self, record: str, slot: torch.Tensor, *, keeps_loan: bool) -> None:
        """See :class:`HostLink`."""
        if self._weights is not None:
            # The same weights at each fetch, so that a recomputation repeats its forward.
            generator = torch.Generator(slot.device).manual_seed(zlib.crc32(record.encode()))
            for view in self._weights.views(record).values():
                view.uniform_(-0.05, 0.05, generator=generator)

    def complete(self, record: str) -> None:
        """See :class:`HostLink`."""

    def push(self, record: str, gradients: Mapping[str, torch.Tensor]) -> None:
        """See :class:`HostLink`."""
        self.received.extend(gradients)
        if self._overlaps:
            self._leaving = gradients

    def end_pass(self) -> None:
        """See :class:`HostLink`."""
        self._leaving = {}

    def abandon(self) -> None:
        """See :class:`HostLink`."""
