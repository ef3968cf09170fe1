"""A linear map whose weight is packed, multiplied by products that skip its zeros.

The walk of the pattern, which the forward derives and the backward uses again, is what an operator
returns, so that whoever counts memory sees it. As long as a graph holds it, later forwards with the
same pattern use it, too: so the micro-batches of a step share one.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from openwafer.training.sparsity.kernels.index import Index, most_words
from openwafer.training.sparsity.linear import multiply, multiply_backward
from openwafer.training.sparsity.multiplication import Multiplication
from openwafer.training.sparsity.packed.form import form_named
from openwafer.training.sparsity.packed.room import PackedRoom
from openwafer.training.torch_private import FakeTensor


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
    """As :func:`~openwafer.training.sparsity.masked_dense.masked_linear`, for 32-bit floats."""
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
