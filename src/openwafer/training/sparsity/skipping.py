"""A linear map whose weight is packed, multiplied by products that skip its zeros.

The walk of the pattern, which the forward derives and the backward uses again, is what an operator
returns, so that whoever counts memory sees it.
"""

from typing import Any

import torch
from torch import Tensor

from openwafer.training.sparsity.kernels import calls
from openwafer.training.sparsity.kernels.index import Index, most_words, walks_of
from openwafer.training.sparsity.multiplication import Multiplication
from openwafer.training.sparsity.packed.form import form_named
from openwafer.training.sparsity.packed.room import PackedRoom


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


@torch.library.custom_op("openwafer::multiply", mutates_args=())
def multiply(
    words: Tensor,
    values: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    num_outputs: int,  # noqa: ARG001  (for those who see no words)
    is_turned: bool,
) -> Tensor:
    """`[tokens, outputs]`: `[tokens, features]` times a walked weight, plus bias."""
    chosen = walks_of(words)[int(is_turned)]
    return calls.forward(chosen, values[: chosen.columns.size], rows, bias)


@multiply.register_fake
def _(
    _words: Tensor,
    _values: Tensor,
    rows: Tensor,
    _bias: Tensor | None,
    num_outputs: int,
    _is_turned: bool,
) -> Tensor:
    return rows.new_empty((rows.shape[0], num_outputs))


@torch.library.custom_op("openwafer::multiply_backward", mutates_args=())
def multiply_backward(
    words: Tensor, values: Tensor, rows: Tensor, gradient: Tensor, is_turned: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of inputs `[tokens, features]` and of values `[capacity]`, then zeros."""
    weight, transposed = walks_of(words)
    walks = (transposed, weight) if is_turned else (weight, transposed)
    num_kept = weight.columns.size
    of_rows, totals = calls.backward(walks, gradient, rows, values[:num_kept])
    of_values = torch.zeros(values.numel())
    of_values[:num_kept] = totals
    return of_rows, of_values


@multiply_backward.register_fake
def _(
    _words: Tensor, values: Tensor, rows: Tensor, _gradient: Tensor, _is_turned: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rows), torch.empty_like(values)


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
        room = weight.room
        words = walk(packed, str(room.form), *room.shape, room.capacity)
        ctx.save_for_backward(inputs, values, packed, words)
        ctx.weight = weight
        rows = inputs.reshape(-1, inputs.shape[-1])
        num_outputs = weight.num_outputs
        product: Tensor = multiply(words, values, rows, bias, num_outputs, weight.is_turned)
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
        of_inputs, of_values = multiply_backward(words, values, rows, gradient, weight.is_turned)
        of_bias = gradient.sum(0) if wants[3] else None
        return of_inputs.view(inputs.shape), of_values, None, of_bias, None
