"""The gradients of a pass, which autograd completes one by one."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from openwafer.training.stream.layers import PINNED, Partition

# The attribute of an ordinary parameter, which a released one hides.
OWN_GRAD: Final[Any] = torch.Tensor.grad


class ArrivingGradients:
    """Knows which records have all their gradients, and takes them off the parameters.

    Args:
        split: the model's records.
        parameters: by name; a gradient is expected of those that want one.
    """

    def __init__(self, split: Partition, parameters: Mapping[str, nn.Parameter]) -> None:
        self._split = split
        self._parameters = parameters
        self._num_arrived: dict[str, int] = {}
        self._num_expected = {
            record: sum(parameters[name].requires_grad for name in names)
            for record, names in split.records.items()
        }

    def expect(self, names: Sequence[str]) -> None:
        """Say which parameters get a gradient, so that a record does not wait for the others."""
        expected = set(names)
        for record, held in self._split.records.items():
            num = len(expected.intersection(held))
            self._num_expected[record] = num or self._num_expected[record]

    def note(self, name: str) -> str | None:
        """A parameter's gradient is complete; returns its record if that is complete, too.

        The pinned record never is: its turn in the store comes when no other loan is out.
        """
        record = self._split.record_of[name]
        self._num_arrived[record] = self._num_arrived.get(record, 0) + 1
        is_complete = self._num_arrived[record] >= self._num_expected[record]
        return record if is_complete and record != PINNED else None

    @property
    def begun(self) -> list[str]:
        """Records of which some gradients have arrived, the pinned one behind the others."""
        return sorted(self._num_arrived, key=PINNED.__eq__)

    def take(self, record: str) -> dict[str, torch.Tensor]:
        """The gradients of a record by parameter name; the parameters have none any more."""
        self._num_arrived.pop(record, None)
        gradients = {}
        for name in self._split.records[record]:
            gradient = take_gradient(self._parameters[name])
            if gradient is not None:
                gradients[name] = gradient
        return gradients

    def forget(self) -> None:
        """Start anew, and drop the gradients that have arrived."""
        self._num_arrived.clear()
        for parameter in self._parameters.values():
            take_gradient(parameter)


def take_gradient(parameter: nn.Parameter) -> torch.Tensor | None:
    """The gradient that a parameter itself has, released or not; it has none afterwards."""
    gradient: torch.Tensor | None = OWN_GRAD.__get__(parameter)
    OWN_GRAD.__set__(parameter, None)
    return gradient
