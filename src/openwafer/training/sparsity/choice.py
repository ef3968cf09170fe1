"""Which sparse weights of a model are multiplied by products that skip zeros, and from when on.

Where these begin to gain depends on vectors and threads as much as on shapes, so both ways can be
tried on this machine. Tensors of zeros or ones are no pattern and no walk: a trial has a random
pattern that keeps as many positions as there is room for, and what would take long is made smaller.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, counted, did_you_mean, error
from openwafer.training.sparsity.kernels.index import Index, most_words
from openwafer.training.sparsity.kernels.vectors import TILE
from openwafer.training.sparsity.packed import PackedRoom, form_named
from openwafer.training.sparsity.pattern import Pattern
from openwafer.training.sparsity.products import (
    FEW_TOKENS,
    Multiplication,
    Products,
    Skipping,
    masked_linear,
    skipping_linear,
)

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


TOKENS: Final = (FEW_TOKENS, 4 * FEW_TOKENS)
"""That are tried; with more of them both ways take as much longer."""
MOST_MEASURED: Final = 1 << 19
"""Elements of a weight; of a larger one some rows are tried."""
MOST_SECONDS: Final = 1.0
NUM_CALLS: Final = 5
LEAST_SECONDS: Final = 0.02
"""For calls of microseconds, each of five of which a busy machine may interrupt."""


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
    weight = TrialWeight.of(rows, columns, kind.room.capacity, MOST_MEASURED)
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
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    begun = now = time.perf_counter()
    while len(times[0]) < NUM_CALLS or now < begun + LEAST_SECONDS:
        if times[0] and now > end:
            break
        for work, found in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            now = time.perf_counter()
            found.append(now - start)
    return [min(found) for found in times]


WrittenProducts: TypeAlias = Products | dict[str, int | None]
"""For all weights alike, or the fewest tokens with which zeros are skipped, ``None`` for never, by
globs of names: the first that matches wins."""


def choose(written: WrittenProducts, weights: Mapping[str, WeightKind]) -> dict[str, Skipping]:
    """When products with each weight skip zeros.

    Args:
        written: for all of them.
        weights: by name.

    Raises:
        OpenwaferError: ``sparse-products`` where a glob matches no weight, or none a weight.
    """
    match written:
        case Products.AUTO:
            return {name: Skipping.by_rule(kind.room) for name, kind in weights.items()}
        case Products.DENSE:
            return dict.fromkeys(weights, Skipping(None))
        case Products.SPARSE:
            return dict.fromkeys(weights, Skipping(1))
        case Products.MEASURED:
            found = measured([*weights.values()])
            return {name: found[kind] for name, kind in weights.items()}
        case dict():
            return _by_name(written, weights)


def first_match(name: str, globs: Iterable[str]) -> str | None:
    """The glob that says it for a weight."""
    return next((glob for glob in globs if fnmatchcase(name, glob)), None)


def _by_name(
    written: Mapping[str, int | None], weights: Mapping[str, WeightKind]
) -> dict[str, Skipping]:
    taken = {name: first_match(name, written) for name in weights}
    chosen = {name: glob for name, glob in taken.items() if glob is not None}
    for glob in written:
        if weights and glob not in chosen.values():
            raise _mistake(
                f"{glob!r} is the first that matches for none of "
                f"{counted(len(weights), 'sparse weight')}",
                did_you_mean(glob, [*weights]),
            )
    missed = next((name for name in weights if name not in chosen), None)
    if missed is not None:
        raise _mistake(f"nothing matches the sparse weight {missed!r}", 'add "*": null for others')
    return {name: Skipping(written[glob]) for name, glob in chosen.items()}


def _mistake(what: str, remedy: str) -> OpenwaferError:
    return error("sparse-products", f"in sparse_products {what}", help=remedy)
