"""Small layers, each of which changes something that is not its own when it runs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.training.stream.layers_with_state import Bare

CALLS = 0
TOTAL = torch.zeros(())
SEEN: list[float] = []


class GlobalCounter(Bare):
    def forward(self, x_BTD: Tensor) -> Tensor:
        global CALLS  # noqa: PLW0603 - as people count
        CALLS += 1
        return torch.exp(self.inner(x_BTD) / (1 + CALLS % 5))


class GlobalList(Bare):
    def forward(self, x_BTD: Tensor) -> Tensor:
        SEEN.append(0.5)
        return torch.exp(self.inner(x_BTD) / len(SEEN))


class GlobalTensor(Bare):
    """Nothing reads the sum while it grows."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.inner(x_BTD)
        TOTAL.add_(y_BTD.detach().mean())
        return torch.exp(y_BTD)


class ClassCounter(Bare):
    calls = 0

    def forward(self, x_BTD: Tensor) -> Tensor:
        type(self).calls += 1
        return torch.exp(self.inner(x_BTD) / ClassCounter.calls)


def counting() -> Callable[[], int]:
    count = 0

    def count_on() -> int:
        nonlocal count
        count += 1
        return count

    return count_on


class ClosureCounter(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.count_on = counting()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.exp(self.inner(x_BTD) / self.count_on())


class Statistics:
    """An object that is no module."""

    def __init__(self) -> None:
        self.num_calls = 0


class SharedObject(Bare):
    statistics = Statistics()

    def forward(self, x_BTD: Tensor) -> Tensor:
        self.statistics.num_calls += 1
        return torch.exp(self.inner(x_BTD) / self.statistics.num_calls)


class InputInPlace(Bare):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.exp(self.inner(x_BTD.mul_(0.5)))


KINDS = (
    GlobalCounter,
    GlobalList,
    GlobalTensor,
    ClassCounter,
    ClosureCounter,
    SharedObject,
    InputInPlace,
)


def counts() -> dict[str, Any]:
    """What the layers have changed."""
    return {
        "CALLS": CALLS,
        "SEEN": list(SEEN),
        "TOTAL": TOTAL.item(),
        "ClassCounter.calls": ClassCounter.calls,
        "SharedObject.statistics": SharedObject.statistics.num_calls,
    }


def start_anew() -> None:
    """Set everything to what it was."""
    global CALLS  # noqa: PLW0603
    CALLS = 0
    SEEN.clear()
    TOTAL.zero_()
    ClassCounter.calls = SharedObject.statistics.num_calls = 0
