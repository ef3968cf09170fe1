"""The product with a sparse weight, for autograd: one operator forward and one backward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.kernels import calls
from openwafer.training.sparsity.kernels.index import Index, walks_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def sparse_linear(
    inputs: Tensor, values: Tensor, index: Index, bias: Tensor | None = None
) -> Tensor:
    """`[..., rows]`: `inputs [..., columns]` times the weight of `values [num_kept]`, plus bias.

    What `F.linear` gives for the dense weight, in time that goes with the kept positions; so do the
    gradients of inputs, values and bias. All sums are 32-bit floats in a fixed order, the same for
    any number of threads. With inputs and values of 16 bits, only what comes out is rounded to
    their format; under autocast, to autocast's.

    Refuses other formats, other devices, and shapes that do not fit.
    """
    _check(inputs, values, index, bias)
    rows, columns = index.shape
    plain = inputs.reshape(inputs.shape[:-1].numel(), columns)
    output: Tensor = multiply(plain, values, bias, index.words, rows, False)
    output = output.reshape(*inputs.shape[:-1], rows)
    if torch.is_autocast_enabled("cpu"):
        return output.to(torch.get_autocast_dtype("cpu"))
    return output


def _check(inputs: Tensor, values: Tensor, index: Index, bias: Tensor | None) -> None:
    rows, columns = index.shape
    if inputs.dim() == 0 or inputs.shape[-1] != columns or values.shape != (index.num_kept,):
        raise _misfit(
            f"inputs of {tuple(inputs.shape)} and {tuple(values.shape)} values for a weight of"
            f" {rows} x {columns} that keeps {index.num_kept}"
        )
    if bias is not None and bias.shape != (rows,):
        raise _misfit(f"a bias of {tuple(bias.shape)} for {rows} rows")
    given = [tensor for tensor in (inputs, values, bias) if tensor is not None]
    kinds = [(tensor.dtype, tensor.device.type) for tensor in given]
    is_known = all(dtype in DTYPES and device in ("cpu", "meta") for dtype, device in kinds)
    if not is_known or (len({*kinds}) > 1 and not torch.is_autocast_enabled("cpu")):
        found = ", ".join(f"{dtype} on {device}" for dtype, device in kinds)
        raise error(
            "sparse-linear-format",
            f"sparse products take float32, bfloat16 or float16 on the CPU, all alike: not {found}",
            help="convert them, or multiply with the dense weight that Pattern.dense gives",
        )


def _misfit(what: str) -> OpenwaferError:
    return error(
        "sparse-linear-shape",
        f"a sparse product does not fit: {what}",
        help="make the index from the pattern that the values belong to",
    )


@torch.library.custom_op("openwafer::sparse_linear", mutates_args=())
def multiply(
    inputs: Tensor,
    values: Tensor,
    bias: Tensor | None,
    words: Tensor,
    num_outputs: int,  # noqa: ARG001  (for those who see no words)
    is_turned: bool,
) -> Tensor:
    """`[tokens, outputs]`: `inputs [tokens, features]` times a walked weight, plus bias.

    Args:
        values: `[capacity]` in the order of the pattern; those behind the kept ones count for
            nothing.
        words: of the index of the pattern.
        is_turned: whether the weight is `[features, outputs]`.
    """
    walk = walks_of(words)[int(is_turned)]
    return calls.forward(walk, values[: walk.columns.size], inputs, bias).to(inputs.dtype)


@multiply.register_fake
def _(
    inputs: Tensor,
    _values: Tensor,
    _bias: Tensor | None,
    _words: Tensor,
    num_outputs: int,
    _is_turned: bool,
) -> Tensor:
    return inputs.new_empty((inputs.shape[0], num_outputs))


@torch.library.custom_op("openwafer::sparse_linear_backward", mutates_args=())
def multiply_backward(
    gradient: Tensor,
    inputs: Tensor | None,
    values: Tensor | None,
    words: Tensor,
    sizes: Sequence[int],
    is_turned: bool,
) -> list[Tensor]:
    """32-bit gradients of the inputs, if values are given, and of the values, if inputs are.

    Args:
        gradient: `[tokens, outputs]`.
        inputs, values, words, is_turned: as forward.
        sizes: features of an input, and the capacity; gradients behind the kept values are 0.
    """
    weight, transposed = walks_of(words)
    walks = (transposed, weight) if is_turned else (weight, transposed)
    num_kept, capacity = weight.columns.size, sizes[1]
    kept = None if values is None else values[:num_kept]
    gradients = calls.backward(walks, gradient, inputs, kept)
    if inputs is not None and num_kept < capacity:
        totals = gradients.pop()
        gradients.append(torch.cat([totals, totals.new_zeros(capacity - num_kept)]))
    return gradients


@multiply_backward.register_fake
def _(
    gradient: Tensor,
    inputs: Tensor | None,
    values: Tensor | None,
    _words: Tensor,
    sizes: Sequence[int],
    _is_turned: bool,
) -> list[Tensor]:
    kinds: list[tuple[int, ...]] = []
    kinds += [] if values is None else [(gradient.shape[0], sizes[0])]
    kinds += [] if inputs is None else [(sizes[1],)]
    return [gradient.new_empty(kind, dtype=torch.float32) for kind in kinds]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001  (torch names it)
    x, values, bias, words, _num_outputs, is_turned = inputs
    needs_input, needs_values, *_ = ctx.needs_input_grad
    kept = x if needs_values else None, values if needs_input else None
    ctx.save_for_backward(*kept, words)
    ctx.sizes, ctx.is_turned = [x.shape[1], values.shape[0]], is_turned
    ctx.dtypes = x.dtype, values.dtype, None if bias is None else bias.dtype


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    inputs, values, words = ctx.saved_tensors
    of_input = of_values = of_bias = None
    if inputs is not None or values is not None:
        gradients = multiply_backward(gradient, inputs, values, words, ctx.sizes, ctx.is_turned)
        of_input = None if values is None else gradients[0].to(ctx.dtypes[0])
        of_values = None if inputs is None else gradients[-1].to(ctx.dtypes[1])
    if ctx.needs_input_grad[2]:
        of_bias = gradient.float().sum(0).to(ctx.dtypes[2])
    return of_input, of_values, of_bias, None, None, None


def _refuse_second(_ctx: Any, *_gradients: Any) -> Any:
    raise error(
        "sparse-linear-twice",
        "gradients of gradients go through a sparse product, which has first ones only",
        help="leave create_graph off, or multiply with the dense weight that Pattern.dense gives",
    )


multiply.register_autograd(_differentiate, setup_context=_save)
multiply_backward.register_autograd(_refuse_second)


@register_flop_formula(torch.ops.openwafer.sparse_linear)
def _flops(
    inputs: Sequence[int], values: Sequence[int], *_others: object, **_keywords: object
) -> int:
    """Two for each token and position that there is room for: a product and a sum.

    How many of them are kept stands in the words, which one who counts does not see.
    """
    return 2 * inputs[0] * values[0]


@register_flop_formula(torch.ops.openwafer.sparse_linear_backward)
def _flops_backward(
    gradient: Sequence[int],
    inputs: Sequence[int] | None,
    values: Sequence[int] | None,
    _words: Sequence[int],
    sizes: Sequence[int],
    *_others: object,
    **_keywords: object,
) -> int:
    """As many as forward, for each gradient that is wanted."""
    return 2 * gradient[0] * sizes[1] * ((inputs is not None) + (values is not None))
