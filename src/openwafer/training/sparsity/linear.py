"""The product with a sparse weight for autograd, and a module that has one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.kernels import calls
from openwafer.training.sparsity.kernels.index import Index, walks_of
from openwafer.training.sparsity.packed.form import form_named, smallest_form
from openwafer.training.sparsity.packed.pack import pack, unpack
from openwafer.training.sparsity.pattern import Pattern

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
    output: Tensor = _sparse_linear(
        plain, values, bias, index.words, [rows, columns, index.num_kept]
    )
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
def _sparse_linear(
    inputs: Tensor,
    values: Tensor,
    bias: Tensor | None,
    words: Tensor,
    sizes: Sequence[int],  # noqa: ARG001  (for those who see no words)
) -> Tensor:
    walk, _ = walks_of(words)
    return calls.forward(walk, values, inputs, bias).to(inputs.dtype)


@_sparse_linear.register_fake
def _(
    inputs: Tensor, _values: Tensor, _bias: Tensor | None, _words: Tensor, sizes: Sequence[int]
) -> Tensor:
    return inputs.new_empty(inputs.shape[0], sizes[0])


@torch.library.custom_op("openwafer::sparse_linear_backward", mutates_args=())
def _sparse_linear_backward(
    gradient: Tensor,
    inputs: Tensor | None,
    values: Tensor | None,
    words: Tensor,
    sizes: Sequence[int],  # noqa: ARG001
) -> list[Tensor]:
    """Gradients of the inputs, if the values are given, and of the values, if the inputs are."""
    return calls.backward(walks_of(words), gradient, inputs, values)


@_sparse_linear_backward.register_fake
def _(
    gradient: Tensor,
    inputs: Tensor | None,
    values: Tensor | None,
    _words: Tensor,
    sizes: Sequence[int],
) -> list[Tensor]:
    kinds: list[tuple[int, ...]] = []
    kinds += [] if values is None else [(gradient.shape[0], sizes[1])]
    kinds += [] if inputs is None else [(sizes[2],)]
    return [gradient.new_empty(kind, dtype=torch.float32) for kind in kinds]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001  (torch names it)
    x, values, bias, words, sizes = inputs
    needs_input, needs_values, *_ = ctx.needs_input_grad
    kept = x if needs_values else None, values if needs_input else None
    ctx.save_for_backward(*kept, words)
    ctx.sizes = sizes
    ctx.dtypes = x.dtype, values.dtype, None if bias is None else bias.dtype


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    inputs, values, words = ctx.saved_tensors
    of_input = of_values = of_bias = None
    if inputs is not None or values is not None:
        gradients = _sparse_linear_backward(gradient, inputs, values, words, ctx.sizes)
        of_input = None if values is None else gradients[0].to(ctx.dtypes[0])
        of_values = None if inputs is None else gradients[-1].to(ctx.dtypes[1])
    if ctx.needs_input_grad[2]:
        of_bias = gradient.float().sum(0).to(ctx.dtypes[2])
    return of_input, of_values, of_bias, None, None


def _refuse_second(_ctx: Any, *_gradients: Any) -> Any:
    raise error(
        "sparse-linear-twice",
        "gradients of gradients go through a sparse product, which has first ones only",
        help="leave create_graph off, or multiply with the dense weight that Pattern.dense gives",
    )


_sparse_linear.register_autograd(_differentiate, setup_context=_save)
_sparse_linear_backward.register_autograd(_refuse_second)


@register_flop_formula(torch.ops.openwafer.sparse_linear)
def _flops(
    inputs: Sequence[int], values: Sequence[int], *_others: object, **_keywords: object
) -> int:
    """Two for each token and kept position: a product and a sum."""
    return 2 * inputs[0] * values[0]


@register_flop_formula(torch.ops.openwafer.sparse_linear_backward)
def _flops_backward(
    gradient: Sequence[int],
    inputs: Sequence[int] | None,
    values: Sequence[int] | None,
    _words: Sequence[int],
    sizes: Sequence[int],
    **_keywords: object,
) -> int:
    """As many as forward, for each gradient that is wanted."""
    return 2 * gradient[0] * sizes[2] * ((inputs is not None) + (values is not None))


class SparseLinear(nn.Module):
    """A linear layer whose weight has only its kept positions.

    Attributes:
        pattern: the kept positions.
        values: `[num_kept]`: the weight there, row after row.
        bias: `[rows]`, or none.

    A state dict holds the pattern, packed; loading one takes the pattern over.
    """

    def __init__(self, pattern: Pattern, values: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.pattern, self._index = pattern, Index.of(pattern)
        self.values = nn.Parameter(values)
        self.bias = None if bias is None else nn.Parameter(bias)

    @classmethod
    def of(cls, linear: nn.Linear, mask: Tensor) -> "SparseLinear":
        """What a dense layer is at the true places of a mask of its weight."""
        pattern = Pattern.from_mask(mask)
        bias: Tensor | None = linear.bias
        bias = None if bias is None else bias.detach().clone()
        return cls(pattern, pattern.values_of(linear.weight.detach()), bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """`[..., rows]` of `[..., columns]`; see :func:`sparse_linear`."""
        return sparse_linear(inputs, self.values, self._index, self.bias)

    def dense(self) -> Tensor:
        """`[rows, columns]`: the weight with its zeros."""
        return self.pattern.dense(self.values.detach())

    def get_extra_state(self) -> dict[str, object]:
        """The pattern as bytes, with what these do not say."""
        form = smallest_form(self.pattern.shape, self.pattern.num_kept)
        packed = torch.from_numpy(pack(self.pattern, form))
        return {"form": str(form), "shape": self.pattern.shape, "packed": packed}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the pattern over; it keeps as many positions as there are values."""
        form, num_kept = form_named(state["form"]), self.values.numel()
        packed = state["packed"].numpy()
        self.pattern = unpack(packed, form, tuple(state["shape"]), num_kept)
        self._index = Index.of(self.pattern)

    def extra_repr(self) -> str:
        """Shape and share of kept positions, for printing."""
        rows, columns = self.pattern.shape
        return f"{columns} to {rows}, density={self.pattern.density:.3g}"
