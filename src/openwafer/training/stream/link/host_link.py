"""What the executor asks of the host side, and the stand-in that plans use."""

import zlib
from collections.abc import Callable, Mapping, Sequence

import torch

from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.schedule import Action


class HostLink:
    """The host side of the link: where weights come from and gradients go; this one does nothing.

    Fetches are served in the order of :meth:`fetch`; :meth:`complete` waits for one of them.

    Attributes:
        lends_memory: whether the device can use weights where the host has them.
        is_of_several: whether other ranks have micro-batches of a step, too, whose gradients are
            added to those that are pushed from here, in host memory.
        adds_in_turn: whether gradients are pushed micro-batch by micro-batch for that.
        on_update: called when a record has been updated, in the thread that does it.
    """

    lends_memory = False
    is_of_several = adds_in_turn = False

    def __init__(self) -> None:
        self.on_update: Callable[[str], None] = lambda record: None

    def begin_pass(self, actions: Sequence[Action]) -> None:
        """A pass over these actions begins; reads may run ahead of them."""

    def go_on(self, actions: Sequence[Action]) -> None:
        """The pass under way goes on over these actions, in place of those that were left."""

    def advance(self, position: int) -> None:
        """The walker has reached that action: move the read-ahead on, take up finished reads."""

    def fetch(self, record: str, slot: torch.Tensor | None, *, keeps_loan: bool) -> None:
        """Begin to bring a record's weights into a device slot (uint8 [bytes]).

        Without a slot, which takes a link that lends memory, they stay where the host has them.
        """

    def complete(self, record: str) -> torch.Tensor | None:
        """Return once the record's fetch is visible to compute: with the memory lent, if it is."""
        return None

    def release(self, record: str) -> None:
        """The device does not use the record's weights any more."""

    def push(self, record: str, parts: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Take the gradients of a record, by parameter name, from the device.

        Args:
            parts: one; of several ranks those of each micro-batch, in rising order, or none.
        """

    def push_zeros(self, records: Sequence[str]) -> None:
        """The gradients of slices are zero: nothing comes from the device, and nothing is kept."""

    def expect_pushes(self, records: Sequence[str]) -> None:
        """The gradients of these records come next, in that order or nearly so."""

    def end_pass(self) -> None:
        """The backward pass is over: every gradient of the pass has been pushed."""

    def abandon(self) -> None:
        """The pass failed: forget what is under way and the gradients it brought."""


class DryLink(HostLink):
    """Moves nothing: fetched weights are whatever the slot holds, gradients are forgotten.

    Args:
        weights: the slots.
        fills_weights: whether to fill them with small random weights instead.
        overlaps: whether copies run beside compute: pushed gradients then stay on the device until
            the next push, as they may. Otherwise memory is lent.

    Attributes:
        holds_back: whether pushed gradients of a record whose weights are lent stay on the device
            until its release, as they do where records are updated on push.
        received: names of the parameters whose gradients were pushed, in that order.
    """

    def __init__(
        self, weights: DeviceWeights, *, fills_weights: bool = False, overlaps: bool = False
    ) -> None:
        super().__init__()
        self.lends_memory = not overlaps
        self.holds_back = True
        self.received: list[str] = []
        self._weights = weights
        self._fills_weights = fills_weights
        self._leaving: Mapping[str, torch.Tensor] = {}
        self._lent: set[str] = set()
        self._held_back: dict[str, Mapping[str, torch.Tensor]] = {}

    def fetch(self, record: str, slot: torch.Tensor | None, *, keeps_loan: bool) -> None:
        if slot is None:
            self._lent.add(record)
        else:
            self._fill(record, slot)

    def complete(self, record: str) -> torch.Tensor | None:
        if record not in self._lent:
            return None
        memory = self._weights.new_slot(record)
        self._fill(record, memory)
        return memory

    def _fill(self, record: str, slot: torch.Tensor) -> None:
        if self._fills_weights:
            # The same weights at each fetch, so that a recomputation repeats its forward.
            generator = torch.Generator(slot.device).manual_seed(zlib.crc32(record.encode()))
            for view in self._weights.views_of(record, slot).values():
                if view.is_floating_point() or view.is_complex():
                    view.uniform_(-0.05, 0.05, generator=generator)
                else:
                    # Zeros are a pattern of a sparse weight, other bytes need not be.
                    view.zero_()

    def release(self, record: str) -> None:
        self._lent.discard(record)
        self._held_back.pop(record, None)

    def push(self, record: str, parts: Sequence[Mapping[str, torch.Tensor]]) -> None:
        (gradients,) = parts
        self.received.extend(gradients)
        if not self.lends_memory:
            self._leaving = gradients
        elif record in self._lent and self.holds_back:
            self._held_back[record] = gradients

    def push_zeros(self, records: Sequence[str]) -> None:
        self.received.extend(records)
        for record in records:
            self.on_update(record)

    def end_pass(self) -> None:
        self._leaving = {}
