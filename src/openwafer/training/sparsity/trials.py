"""Calls of the operators on sparse weights that can be timed before there is a weight.

Tensors of zeros or ones are no pattern and no walk. A trial has a random pattern that keeps as many
positions as there is room for, and what would take long is made smaller.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from openwafer.training.sparsity.kernels.emission import TILE
from openwafer.training.sparsity.kernels.index import Index, most_words
from openwafer.training.sparsity.packed.form import form_named
from openwafer.training.sparsity.packed.room import PackedRoom
from openwafer.training.sparsity.pattern import Pattern

CPU: Final = torch.device("cpu")
MOST_ELEMENTS: Final = 1 << 22
"""Of a weight that is tried; of a larger one some of the rows are."""
MOST_PRODUCTS: Final = 1 << 27
"""Of numbers, for each thread: some hundredths of a second."""


@dataclass(frozen=True)
class Trial:
    """A call that can be timed.

    Attributes:
        args: of the operator.
        times: how many such calls take as long as the one that is asked for.
    """

    args: tuple[Any, ...]
    times: float


def trial_of(operator: Any, device: torch.device, args: tuple[Any, ...]) -> Trial:
    """A call with valid arguments in the place of one with made-up ones.

    Args:
        operator: an overload for which there are trials.
        device: where the call is to be made.
        args: of that call, tensors by their kind: they need no memory.
    """
    return _MADE[operator.name()](device, *args)


def is_known(operator: Any) -> bool:
    """Whether there are trials of an operator."""
    return operator.name() in _MADE


@dataclass(frozen=True)
class TrialWeight:
    """Some rows of a weight, with room for as large a share of the positions.

    Attributes:
        shape: rows and columns.
        capacity: most positions that are kept.
        times: how many times more rows there are.
    """

    shape: tuple[int, int]
    capacity: int
    times: float

    @classmethod
    def of(
        cls, rows: int, columns: int, capacity: int, most_elements: int = MOST_ELEMENTS
    ) -> "TrialWeight":
        """Of a weight with room for so many positions."""
        fewer = max(1, min(rows, most_elements // max(columns, 1)))
        return cls((fewer, columns), capacity * fewer // max(rows, 1), rows / fewer)

    def pattern(self) -> Pattern:
        """Random positions, all that there is room for or a few less."""
        rows, columns = self.shape
        share = self.capacity / max(rows * columns, 1)
        generator = torch.Generator().manual_seed(0)
        mask = torch.rand(self.shape, generator=generator) < share
        mask.view(-1)[mask.view(-1).nonzero()[self.capacity :]] = False
        return Pattern.from_mask(mask)

    def packed(self, form: str, device: torch.device = CPU) -> Tensor:
        """The pattern's bytes."""
        room = PackedRoom(form_named(form), self.shape, self.capacity)
        return room.packed(self.pattern()).to(device)

    def words(self) -> Tensor:
        """How products walk the pattern."""
        found = Index.of(self.pattern()).words
        words = torch.zeros(most_words(self.shape, self.capacity), dtype=torch.int32)
        words[: found.numel()] = found
        return words

    def values(self, like: Tensor, device: torch.device) -> Tensor:
        """`[capacity]` of the dtype of other values."""
        return torch.ones(self.capacity, dtype=like.dtype, device=device)

    def num_tokens(self, wanted: int) -> int:
        """Tokens for a product of this weight: enough that every thread has some to do."""
        threads = torch.get_num_threads()
        tiles = max(2 * threads, threads * MOST_PRODUCTS // (TILE * max(self.capacity, 1)))
        return min(wanted, tiles * TILE)


def _spread(
    device: torch.device, values: Tensor, _packed: Tensor, form: str, rows: int, columns: int
) -> Trial:
    weight = TrialWeight.of(rows, columns, values.numel())
    made = weight.values(values, device), weight.packed(form, device)
    return Trial((*made, form, *weight.shape), weight.times)


def _gather(
    device: torch.device, whole: Tensor, _packed: Tensor, form: str, capacity: int
) -> Trial:
    rows, columns = whole.shape
    weight = TrialWeight.of(rows, columns, capacity)
    dense = torch.ones(weight.shape, dtype=whole.dtype, device=device)
    return Trial((dense, weight.packed(form, device), form, weight.capacity), weight.times)


def _walk(
    device: torch.device, _packed: Tensor, form: str, rows: int, columns: int, capacity: int
) -> Trial:
    weight = TrialWeight.of(rows, columns, capacity)
    packed = weight.packed(form, device)
    return Trial((packed, form, *weight.shape, weight.capacity), weight.times)


def _multiply(
    device: torch.device,
    inputs: Tensor,
    values: Tensor,
    bias: Tensor | None,
    _words: Tensor,
    num_outputs: int,
    is_turned: bool,
) -> Trial:
    tokens, features = inputs.shape
    weight, (some_features, some_outputs) = _some(
        (features, num_outputs), values.numel(), is_turned
    )
    some = weight.num_tokens(tokens)
    begun = None if bias is None else torch.ones(some_outputs, dtype=bias.dtype, device=device)
    rows = torch.ones(some, some_features, dtype=inputs.dtype, device=device)
    args = rows, weight.values(values, device), begun, weight.words(), some_outputs, is_turned
    return Trial(args, weight.times * tokens / max(some, 1))


def _multiply_backward(
    device: torch.device,
    gradient: Tensor,
    inputs: Tensor | None,
    values: Tensor | None,
    _words: Tensor,
    sizes: tuple[int, int],
    is_turned: bool,
) -> Trial:
    (tokens, outputs), (features, capacity) = gradient.shape, sizes
    weight, (some_features, some_outputs) = _some((features, outputs), capacity, is_turned)
    some = weight.num_tokens(tokens)

    def ones(width: int, like: Tensor) -> Tensor:
        return torch.ones(some, width, dtype=like.dtype, device=device)

    args = (
        ones(some_outputs, gradient),
        None if inputs is None else ones(some_features, inputs),
        None if values is None else weight.values(values, device),
        weight.words(),
        [some_features, weight.capacity],
        is_turned,
    )
    return Trial(args, weight.times * tokens / max(some, 1))


def _some(
    ways: tuple[int, int], capacity: int, is_turned: bool
) -> tuple[TrialWeight, tuple[int, int]]:
    """The weight of a product from features to outputs, and how many of these it has."""
    features, outputs = ways
    weight = TrialWeight.of(*(ways if is_turned else (outputs, features)), capacity)
    rows, columns = weight.shape
    return weight, (rows, columns) if is_turned else (columns, rows)


_MADE: Final[Mapping[str, Callable[..., Trial]]] = {
    "openwafer::spread": _spread,
    "openwafer::gather": _gather,
    "openwafer::walk": _walk,
    "openwafer::sparse_linear": _multiply,
    "openwafer::sparse_linear_backward": _multiply_backward,
}
