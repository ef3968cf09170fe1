"""Tries both ways to multiply by a sparse weight on this machine, and says which is the faster one.

Where products that skip zeros begin to gain depends on vectors and threads as much as on shapes.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from openwafer.training.sparsity.masked_dense import masked_linear
from openwafer.training.sparsity.multiplication import FEW_TOKENS, Multiplication, Skipping
from openwafer.training.sparsity.packed.room import PackedRoom
from openwafer.training.sparsity.skipping import skipping_linear
from openwafer.training.sparsity.trials import TrialWeight

TOKENS: Final = (FEW_TOKENS, 4 * FEW_TOKENS)
"""That are tried; with more of them both ways take as much longer."""
MOST_ELEMENTS: Final = 1 << 19
"""Of a weight; of a larger one some rows are tried."""
MOST_SECONDS: Final = 1.0
NUM_CALLS: Final = 5


class WeightKind(NamedTuple):
    """All that the times of products depend on; see :class:`Multiplication`."""

    room: PackedRoom
    is_turned: bool


def measured(
    weights: Sequence[WeightKind], most_seconds: float = MOST_SECONDS
) -> dict[WeightKind, Skipping]:
    """When products skip zeros, by times of forward and backward, for each kind of weight.

    Those kinds come first of which there is most. What is not tried within ``most_seconds``
    follows the rule.
    """
    elements: dict[WeightKind, int] = {}
    for kind in weights:
        rows, columns = kind.room.shape
        elements[kind] = elements.get(kind, 0) + rows * columns
    for kind in weights[:1]:
        # Code is compiled by its first use.
        _seconds(_steps(kind, 1), 0.0)
    end = time.perf_counter() + most_seconds
    return {
        kind: skipping_of(_gains(kind, end))
        if time.perf_counter() < end
        else Skipping.by_rule(kind.room)
        for kind in sorted(elements, key=elements.__getitem__, reverse=True)
    }


def skipping_of(gains: Sequence[tuple[int, float]]) -> Skipping:
    """When products skip zeros, by tokens, ascending, and how many times faster they were then.

    The gain that is told is that of the most tokens.
    """
    fewest = None
    for tokens, gain in reversed(gains):
        if gain <= 1:
            break
        fewest = tokens
    return Skipping(fewest, gains[-1][1])


def _gains(kind: WeightKind, end: float) -> list[tuple[int, float]]:
    gains = []
    for tokens in TOKENS:
        dense, skipping = _seconds(_steps(kind, tokens), end)
        gains.append((tokens, dense / skipping))
    return gains


def _steps(kind: WeightKind, num_tokens: int) -> list[Callable[[], object]]:
    """A forward and a backward by dense products, and by those that skip zeros."""
    rows, columns = kind.room.shape
    weight = TrialWeight.of(rows, columns, kind.room.capacity, MOST_ELEMENTS)
    room = PackedRoom(kind.room.form, weight.shape, weight.capacity)
    how = Multiplication(room, kind.is_turned, Skipping(None))
    values = torch.ones(weight.capacity, requires_grad=True)
    packed = weight.packed(str(room.form))
    features = room.shape[0 if kind.is_turned else 1]
    inputs = torch.ones(num_tokens, features, requires_grad=True)
    gradient = torch.ones(num_tokens, how.num_outputs)

    def step_of(multiply: Callable[..., Tensor]) -> Callable[[], object]:
        def step() -> object:
            with torch.enable_grad():
                output = multiply(inputs, values, packed, None, how)
                return torch.autograd.grad(output, (inputs, values), gradient)

        return step

    return [step_of(masked_linear), step_of(skipping_linear)]


def _seconds(works: Sequence[Callable[[], object]], end: float) -> list[float]:
    """The shortest time of each, in turns, behind a call that warms up; of one call at the end."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(1 + NUM_CALLS):
        if number > 1 and time.perf_counter() > end:
            break
        for work, found in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            if number:
                found.append(time.perf_counter() - start)
    return [min(found) for found in times]
