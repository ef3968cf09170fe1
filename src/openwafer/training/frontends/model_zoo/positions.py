"""Where a training is in its batches and its random numbers, so that it goes on bit for bit."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from openwafer.training.frontends.present.loader import DataLoader


def random_state() -> list[torch.Tensor]:
    """States of torch's generators: the CPU's, then those of all GPUs."""
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def set_random_state(states: list[torch.Tensor]) -> None:
    """Go on where :func:`random_state` was."""
    cpu, *devices = states
    torch.set_rng_state(cpu.to(torch.uint8))
    if len(devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.to(torch.uint8) for state in devices])


class OngoingBatches:
    """Batches of one training, which goes on where it was each time that it is iterated over.

    Args:
        loader: begins anew where its batches end.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self._rest: Iterator[Any] | None = None
        self._num_taken = 0
        self._begun: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        goes_on, is_empty = self._rest is not None, True
        for batch in self._counted():
            is_empty = False
            yield batch
        if goes_on and is_empty:  # the batch before was the last of its epoch
            yield from self._counted()

    def _counted(self) -> Iterator[Any]:
        if self._rest is None:
            self._begin()
        assert self._rest is not None
        for batch in self._rest:
            self._num_taken += 1
            yield batch
        self._rest = None

    def _begin(self) -> None:
        # What a loader draws, as an order, follows from this.
        self._begun, self._num_taken = random_state(), 0
        if self._generator is not None:
            self._begun.append(self._generator.get_state())
        self._rest = iter(self.loader)

    @property
    def _generator(self) -> torch.Generator | None:
        """The one that a loader of torch has for itself."""
        return getattr(self.loader.dataloader, "generator", None)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: batches of this epoch, and random numbers at its beginning."""
        return {"num_taken": self._num_taken, "random": self._begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the batches that were taken; they are made again and dropped."""
        num_taken = int(state["num_taken"])
        if num_taken == 0:
            return
        begun = list(state["random"])
        if self._generator is not None:
            self._generator.set_state(begun.pop())
        set_random_state(begun)
        self._begin()
        assert self._rest is not None
        for _ in islice(self._rest, num_taken):
            self._num_taken += 1
