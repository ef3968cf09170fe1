"""Linear maps of packed weights: as the dense weight, by products that skip zeros, for few tokens.

As the dense weight: it is spread out where it is multiplied and let go again, so what is kept for
the backward is the values and the pattern. Products are those of torch's own linear maps, operator
by operator: results have the bits of a dense weight with zeros at the dropped positions.

By products that skip zeros: the walk of the pattern, which the forward derives and the backward
uses again, is what an operator returns, so that whoever counts memory sees it. As long as a graph
holds it, later forwards with the same pattern use it, too: so the micro-batches of a step share it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from openwafer.training.sparsity.kernels.index import Index, most_words
from openwafer.training.sparsity.linear import multiply, multiply_backward
from openwafer.training.sparsity.packed import PackedRoom, form_named
from openwafer.training.sparsity.pattern import Pattern, column_dtype, compiled
from openwafer.training.torch_private import FakeTensor

FEW_TOKENS: Final = 64
LOW_SPARSITY: Final = 0.7
"""With fewer tokens or zeros, products that skip zeros gain little or lose: see the journal."""


class Products(StrEnum):
    """How a run multiplies by sparse weights.

    ``dense`` spreads a weight out and gives the bits of masked dense training; ``sparse`` skips
    zeros, with the same bits for any number of threads; ``auto`` skips them by a rule; ``measured``
    where that was faster when it was tried on this machine.
    """

    AUTO = "auto"
    DENSE = "dense"
    SPARSE = "sparse"
    MEASURED = "measured"


@dataclass(frozen=True)
class Skipping:
    """When products with a weight skip its zeros.

    Attributes:
        from_tokens: fewest tokens with which they do; ``None``: never.
        gain: how many times faster than dense ones they were, if they were tried.
    """

    from_tokens: int | None
    gain: float | None = None

    @classmethod
    def by_rule(cls, room: PackedRoom) -> "Skipping":
        """Where it is likely to be faster on any machine."""
        rows, columns = room.shape
        sparsity = 1 - room.capacity / (rows * columns)
        return cls(FEW_TOKENS if sparsity >= LOW_SPARSITY else None)


class GradientWatcher(Protocol):
    """Wants to see gradients of dense weights in some steps."""

    @property
    def is_wanted(self) -> bool:
        """Whether this step is one of them."""

    def __call__(self, gradient: Tensor, packed: Tensor) -> None:
        """The gradient of the dense weight, `[rows, columns]`, and the bytes of its pattern."""


@dataclass(eq=False)
class Multiplication:
    """How to multiply by one packed weight.

    Attributes:
        room: of the pattern.
        is_turned: whether the map is ``inputs @ weight``, where the weight is `[features,
            outputs]`, and not ``inputs @ weight.T``.
        skipping: when products skip zeros, on the CPU with 32-bit floats; others never do.
        watcher: told the gradients of the dense weight, one for each backward.
    """

    room: PackedRoom
    is_turned: bool
    skipping: Skipping
    watcher: GradientWatcher | None = None

    @property
    def wants_gradient(self) -> bool:
        """Whether somebody watches in this step."""
        return self.watcher is not None and self.watcher.is_wanted

    @property
    def num_outputs(self) -> int:
        """Features of an output."""
        return self.room.shape[1 if self.is_turned else 0]

    def skips_zeros(self, inputs: Tensor, values: Tensor) -> bool:
        """Whether products with these inputs, `[..., features]`, skip zeros."""
        fewest = self.skipping.from_tokens
        can = inputs.device.type == "cpu" and values.dtype is torch.float32 and inputs.numel() > 0
        return can and fewest is not None and inputs.shape[:-1].numel() >= fewest

    def gradient_of_weight(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of the dense weight, of `[tokens, features]` and `[tokens, outputs]`."""
        return inputs.t().mm(gradient) if self.is_turned else gradient.t().mm(inputs)


MATRIX: Final = 2


@torch.library.custom_op("openwafer::spread", mutates_args=())
def spread(values: Tensor, packed: Tensor, form: str, rows: int, columns: int) -> Tensor:
    """`[rows, columns]`: values `[capacity]` at the kept positions, zeros elsewhere."""
    return PackedRoom(form_named(form), (rows, columns), values.numel()).dense(values, packed)


@spread.register_fake
def _(values: Tensor, _packed: Tensor, _form: str, rows: int, columns: int) -> Tensor:
    return values.new_empty((rows, columns))


@torch.library.custom_op("openwafer::gather", mutates_args=())
def gather(weight: Tensor, packed: Tensor, form: str, capacity: int) -> Tensor:
    """`[capacity]`: what a dense `[rows, columns]` holds at the kept positions, then zeros."""
    rows, columns = weight.shape
    room = PackedRoom(form_named(form), (rows, columns), capacity)
    return room.padded(room.pattern(packed).values_of(weight))


@gather.register_fake
def _(weight: Tensor, _packed: Tensor, _form: str, capacity: int) -> Tensor:
    return weight.new_empty((capacity,))


def masked_linear(
    inputs: Tensor, values: Tensor, packed: Tensor, bias: Tensor | None, weight: Multiplication
) -> Tensor:
    """`[..., outputs]`: the linear map of a packed weight, with gradients for all but the pattern.

    Args:
        inputs: `[..., features]`, of the dtype of `values`.
        values: `[capacity]` in the order of the pattern; those behind the last one count for
            nothing and have no gradient.
        packed: `uint8`, the pattern's bytes.
        bias: `[outputs]`.
        weight: how to multiply by it.
    """
    result: Tensor = _MaskedLinear.apply(inputs, values, packed, bias, weight)  # type: ignore[no-untyped-call]
    return result


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        values: Tensor,
        packed: Tensor,
        bias: Tensor | None,
        weight: Multiplication,
    ) -> Tensor:
        ctx.save_for_backward(inputs, values, packed)
        ctx.weight = weight
        dense: Tensor = spread(values, packed, str(weight.room.form), *weight.room.shape)
        dense = dense if weight.is_turned else dense.t()
        rows = inputs.reshape(-1, inputs.shape[-1])
        if bias is None:
            product = rows.mm(dense)
        elif _adds_at_once(inputs):
            product = torch.addmm(bias, rows, dense)
        else:
            product = rows.mm(dense) + bias
        return product.view(*inputs.shape[:-1], dense.shape[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, values, packed = ctx.saved_tensors
        weight, wants = ctx.weight, ctx.needs_input_grad
        rows = gradients[0].reshape(-1, gradients[0].shape[-1])
        of_inputs = of_values = of_bias = None
        if wants[0]:
            dense = spread(values, packed, str(weight.room.form), *weight.room.shape)
            of_rows = rows.mm(dense.t() if weight.is_turned else dense)
            of_inputs = of_rows.view(inputs.shape)
        if wants[1]:
            given = inputs.reshape(-1, inputs.shape[-1])
            whole = weight.gradient_of_weight(given, rows)
            if weight.watcher is not None and weight.wants_gradient:
                weight.watcher(whole, packed)
            of_values = gather(whole, packed, str(weight.room.form), values.numel())
        if wants[3]:
            of_bias = (
                rows.sum(0) if _adds_at_once(inputs) else gradients[0].sum_to_size(rows.shape[1:])
            )
        return of_inputs, of_values, None, of_bias, None


def _adds_at_once(inputs: Tensor) -> bool:
    """Whether torch's linear map of such inputs is one operator with its bias."""
    return inputs.ndim == MATRIX or inputs.is_contiguous()


@torch.library.custom_op("openwafer::walk", mutates_args=())
def walk(packed: Tensor, form: str, rows: int, columns: int, capacity: int) -> Tensor:
    """`int32 [most_words]`: how products go through a pattern; what is not needed is 0."""
    pattern = PackedRoom(form_named(form), (rows, columns), capacity).pattern(packed)
    found, most = Index.of(pattern).words, most_words((rows, columns), capacity)
    if found.numel() == most:
        return found
    words = torch.zeros(most, dtype=torch.int32)
    words[: found.numel()] = found
    return words


@walk.register_fake
def _(packed: Tensor, _form: str, rows: int, columns: int, capacity: int) -> Tensor:
    return packed.new_empty(most_words((rows, columns), capacity), dtype=torch.int32)


# Here and not in the model: what its forward changes there would be taken for a state of it.
_LAST_WALKS: WeakKeyDictionary[Multiplication, TensorWeakRef] = WeakKeyDictionary()
_PATTERNS = WeakTensorKeyDictionary()
"""The bytes that each of these walks was made of."""


def _walk_of(weight: Multiplication, packed: Tensor) -> Tensor:
    """The walk of a pattern: the last one if it is in use still, and the bytes are the same."""
    room, last = weight.room, _LAST_WALKS.get(weight)
    words: Tensor | None = None if last is None else last()
    if words is not None and _is_same(_PATTERNS[words], packed):
        return words
    words = walk(packed, str(room.form), *room.shape, room.capacity)
    if not torch.compiler.is_compiling():
        _LAST_WALKS[weight] = TensorWeakRef(words)
        _PATTERNS[words] = packed.detach().clone()
    return words


def _is_same(before: Tensor, packed: Tensor) -> bool:
    if type(before) is not type(packed.detach()):
        return False
    # Of tensors without memory nobody changes a pattern.
    return isinstance(before, FakeTensor) or torch.equal(before, packed)


def skipping_linear(
    inputs: Tensor, values: Tensor, packed: Tensor, bias: Tensor | None, weight: Multiplication
) -> Tensor:
    """As :func:`~openwafer.training.sparsity.products.masked_linear`, for 32-bit floats."""
    result: Tensor = _SkippingLinear.apply(inputs, values, packed, bias, weight)  # type: ignore[no-untyped-call]
    return result


class _SkippingLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        values: Tensor,
        packed: Tensor,
        bias: Tensor | None,
        weight: Multiplication,
    ) -> Tensor:
        words = _walk_of(weight, packed)
        ctx.save_for_backward(inputs, values, packed, words)
        ctx.weight = weight
        rows = inputs.reshape(-1, inputs.shape[-1])
        num_outputs = weight.num_outputs
        product: Tensor = multiply(rows, values, bias, words, num_outputs, weight.is_turned)
        return product.view(*inputs.shape[:-1], num_outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, values, packed, words = ctx.saved_tensors
        weight, wants = ctx.weight, ctx.needs_input_grad
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        rows = inputs.reshape(-1, inputs.shape[-1])
        if wants[1] and weight.watcher is not None and weight.wants_gradient:
            weight.watcher(weight.gradient_of_weight(rows, gradient), packed)
        sizes = [rows.shape[1], values.shape[0]]
        given = rows if wants[1] else None, values if wants[0] else None
        found = multiply_backward(gradient, *given, words, sizes, weight.is_turned)
        of_inputs = found[0].view(inputs.shape) if wants[0] else None
        of_values = found[-1] if wants[1] else None
        of_bias = gradient.sum(0) if wants[3] else None
        return of_inputs, of_values, None, of_bias, None


MOST_TOKENS: Final = 8
SUMS: Final = 4
"""Of each output, which the processor adds to in turn."""

Floats = NDArray[np.float32]


class FewTokens:
    """How a module multiplies a few tokens while its model writes.

    Args:
        weight: the products of the module.

    Attributes:
        keeps_pattern: whether the next pattern that is unpacked is kept; a pattern with other bytes
            takes its place.
    """

    def __init__(self, weight: Multiplication) -> None:
        self.keeps_pattern = False
        self._weight = weight
        self._kept: tuple[Tensor, Pattern] | None = None

    @property
    def kept_bytes(self) -> int:
        """Most bytes that the kept pattern takes, with the packed one that it is known by."""
        return pattern_bytes(self._weight.room)

    def takes(self, inputs: Tensor, values: Tensor) -> bool:
        """Whether these inputs, `[..., features]`, are multiplied here."""
        is_here = inputs.device.type == "cpu" and inputs.dtype == values.dtype == torch.float32
        is_real = not isinstance(inputs, FakeTensor) and not torch.is_grad_enabled()
        return is_here and is_real and 1 <= inputs.shape[:-1].numel() <= MOST_TOKENS

    def multiply(
        self, inputs: Tensor, values: Tensor, packed: Tensor, bias: Tensor | None
    ) -> Tensor:
        """`[..., outputs]`, as the products that skip zeros, with sums in another order."""
        pattern = self._pattern(packed)
        output = inputs.new_zeros(*inputs.shape[:-1], self._weight.num_outputs)
        multiply = _multiply_turned if self._weight.is_turned else _multiply
        rows = inputs.detach().reshape(-1, inputs.shape[-1]).contiguous().numpy()
        sums = output.view(len(rows), -1).numpy()
        multiply(pattern.row_starts, pattern.columns, values.detach().numpy(), rows, sums)
        return output if bias is None else output.add_(bias)

    def _pattern(self, packed: Tensor) -> Pattern:
        if self._kept is not None and torch.equal(self._kept[0], packed):
            return self._kept[1]
        found = self._weight.room.pattern(packed)
        self._kept = (packed.clone(), found) if self.keeps_pattern else None
        return found


def pattern_bytes(room: PackedRoom) -> int:
    """Bytes of the most positions that a room is for, unpacked and packed."""
    rows, columns = room.shape
    return 8 * (rows + 1) + column_dtype(columns).itemsize * room.capacity + room.num_bytes


@compiled
def _multiply(
    starts: NDArray[np.int64], columns: NDArray[Any], values: Floats, inputs: Floats, sums: Floats
) -> None:
    for token in range(inputs.shape[0]):
        given = inputs[token]
        for row in range(starts.size - 1):
            place, end = starts[row], starts[row + 1]
            one = two = three = four = np.float32(0)
            while place + SUMS <= end:
                one += values[place] * given[columns[place]]
                two += values[place + 1] * given[columns[place + 1]]
                three += values[place + 2] * given[columns[place + 2]]
                four += values[place + 3] * given[columns[place + 3]]
                place += SUMS
            while place < end:
                one += values[place] * given[columns[place]]
                place += 1
            sums[token, row] = (one + two) + (three + four)


@compiled
def _multiply_turned(
    starts: NDArray[np.int64], columns: NDArray[Any], values: Floats, inputs: Floats, sums: Floats
) -> None:
    for token in range(inputs.shape[0]):
        for row in range(starts.size - 1):
            factor = inputs[token, row]
            for place in range(starts[row], starts[row + 1]):
                sums[token, columns[place]] += values[place] * factor
