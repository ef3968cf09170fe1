"""A linear map whose weight is packed, multiplied as the dense weight that it stands for.

The weight is spread out where it is multiplied and let go again, so what is kept for the backward
is the values and the pattern. Products are those of torch's own linear maps, operator by operator:
results and gradients have the bits of a dense weight with zeros at the dropped positions.
"""

from typing import Any, Final

import torch
from torch import Tensor

from openwafer.training.sparsity.multiplication import Multiplication
from openwafer.training.sparsity.packed.form import form_named
from openwafer.training.sparsity.packed.room import PackedRoom

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
