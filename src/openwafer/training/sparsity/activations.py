"""The linear map of an input that may be mostly zeros, for autograd.

How many numbers of the input are zero decides whether they are skipped, so that the same input is
always multiplied in the same way. The gradient of a number that is zero is left out, which is right
where whatever made it zero has no slope there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from openwafer.training.sparsity.kernels import calls
from openwafer.training.sparsity.kernels.index import Walk, most_words, write_walks
from openwafer.training.sparsity.pattern import Pattern, column_dtype, compiled

LEAST_ZEROS: Final = 0.75
"""Share of zeros from which on products that skip them are faster: see the journal."""
FEWEST_TOKENS: Final = 256
PIECE_TOKENS: Final = 1024
PIECE_NUMBERS: Final = 1 << 22
ALIGNMENT: Final = 64


@dataclass(frozen=True)
class Pieces:
    """How activations `[tokens, features]` are cut; a piece is enough to use each weight often."""

    tokens: int
    features: int

    @property
    def piece_tokens(self) -> int:
        """Tokens of a piece; the last one may have fewer."""
        most = max(FEWEST_TOKENS, min(PIECE_TOKENS, PIECE_NUMBERS // max(1, self.features)))
        return max(1, min(most, self.tokens))

    @property
    def most_kept(self) -> int:
        """Most numbers of a piece that are not zero, where zeros are skipped."""
        return int(self.piece_tokens * self.features * (1 - LEAST_ZEROS))

    @property
    def workspace_bytes(self) -> int:
        """Bytes in which a piece's numbers, their columns and their index find room."""
        words = most_words((self.piece_tokens, self.features), self.most_kept)
        number_bytes = 4 + column_dtype(self.features).itemsize
        return 4 * words + number_bytes * (self.most_kept + 1) + 3 * ALIGNMENT

    def __iter__(self) -> Iterator[slice]:
        for first in range(0, self.tokens, self.piece_tokens):
            yield slice(first, min(first + self.piece_tokens, self.tokens))

    def skip_zeros(self, counts: NDArray[np.int64]) -> bool:
        """Whether products skip zeros: by the numbers of each token that are not zero."""
        most = self.features * (1 - LEAST_ZEROS)
        return self.tokens >= FEWEST_TOKENS and all(
            counts[piece].sum() <= most * counts[piece].size for piece in self
        )


@dataclass(frozen=True)
class Piece:
    """What is not zero among the activations of some tokens.

    Attributes:
        pattern: `[tokens, features]`, where it is.
        values: `[num_kept]`.
        walks: of the pattern; with rows and columns exchanged where that was asked for.
    """

    pattern: Pattern
    values: Tensor
    walks: list[Walk]

    def spread(self, values: Tensor, rows: Tensor) -> None:
        """Set `rows [tokens, features]` to values at the positions, and to zero elsewhere."""
        spread(self.pattern.row_starts, self.pattern.columns, values.numpy(), rows.numpy())


def counts_of(activations: Tensor) -> NDArray[np.int64]:
    """Numbers of each of `activations [tokens, features]` that are not zero."""
    counts = np.empty(len(activations), np.int64)
    count(activations.numpy(), counts)
    return counts


def taken(
    activations: Tensor, counts: NDArray[np.int64], workspace: Tensor, *, has_transposed: bool
) -> Piece:
    """A piece, by views of the workspace, which are good until the next one is taken from it."""
    tokens, features = activations.shape
    starts = np.zeros(tokens + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    num_kept = int(starts[-1])
    columns, rest = _cut(workspace.numpy(), column_dtype(features), num_kept + 1)
    values, rest = _cut(rest, np.dtype(np.float32), num_kept + 1)
    take(activations.numpy(), columns, values)
    pattern = Pattern((tokens, features), starts, columns[:-1])
    words, _ = _cut(rest, np.dtype(np.int32), most_words(pattern.shape, num_kept))
    walks = write_walks(pattern, words, has_transposed=has_transposed)
    return Piece(pattern, torch.from_numpy(values[:-1]), walks)


def _cut(
    memory: NDArray[np.uint8], dtype: "np.dtype[Any]", count: int
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """An array at the beginning of memory, and the memory behind it."""
    end = count * dtype.itemsize
    return memory[:end].view(dtype), memory[-(-end // ALIGNMENT) * ALIGNMENT :]


MATRIX: Final = 2
KEPT, SKIPS = 0, 1


@torch.library.custom_op("openwafer::activation_linear", mutates_args=("workspace", "found"))
def multiply(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, workspace: Tensor, found: Tensor
) -> Tensor:
    """`[..., outputs]`: what `F.linear` gives for `inputs [..., features]`.

    Args:
        workspace: `uint8 [Pieces.workspace_bytes]`, overwritten.
        found: `int64 [2]`, set to how many inputs are not zero, and whether zeros were skipped.
    """
    rows = _rows(inputs)
    pieces, counts = Pieces(*rows.shape), counts_of(rows)
    skips = pieces.skip_zeros(counts)
    found[KEPT], found[SKIPS] = int(counts.sum()), int(skips)
    if not skips:
        return functional.linear(inputs, weight, bias)
    output = torch.empty(len(rows), len(weight))
    for tokens in pieces:
        piece = taken(rows[tokens], counts[tokens], workspace, has_transposed=False)
        product = calls.forward(piece.walks[0], piece.values, weight, None).t()
        torch.add(product, bias, out=output[tokens]) if bias is not None else output[tokens].copy_(
            product
        )
    return output.view(*inputs.shape[:-1], len(weight))


@multiply.register_fake
def _(
    inputs: Tensor, weight: Tensor, _bias: Tensor | None, _workspace: Tensor, _found: Tensor
) -> Tensor:
    return inputs.new_empty((*inputs.shape[:-1], weight.shape[0]))


@torch.library.custom_op("openwafer::activation_linear_backward", mutates_args=("workspace",))
def multiply_backward(
    gradient: Tensor,
    inputs: Tensor,
    weight: Tensor,
    workspace: Tensor,
    found: Tensor,
    wants: Sequence[bool],
) -> list[Tensor]:
    """Gradients of `inputs [..., features]` and the weight, those that are wanted.

    Args:
        gradient: `[..., outputs]`.
        inputs, weight, workspace: as forward.
        found: as forward left it.
        wants: whether that of the inputs and that of the weight are.
    """
    rows, gradients = _rows(inputs), gradient.reshape(-1, gradient.shape[-1])
    if not found[SKIPS]:
        of_rows = [gradients.mm(weight).view(inputs.shape)] if wants[0] else []
        return [*of_rows, gradients.t().mm(rows)] if wants[1] else of_rows
    of_inputs = torch.empty(rows.shape if wants[0] else (0, rows.shape[1]))
    of_weight = torch.zeros(weight.shape if wants[1] else (0, 0))
    pieces, counts = Pieces(*rows.shape), counts_of(rows)
    for tokens in pieces:
        piece = taken(rows[tokens], counts[tokens], workspace, has_transposed=True)
        walks, turned = (piece.walks[0], piece.walks[1]), gradients[tokens].t()
        given = weight if wants[0] else None, piece.values if wants[1] else None
        parts = calls.backward(walks, turned, *given)
        if wants[0]:
            piece.spread(parts.pop(), of_inputs[tokens])
        if wants[1]:
            of_weight += parts.pop()
    whole = [of_inputs.view(inputs.shape)] if wants[0] else []
    return [*whole, of_weight] if wants[1] else whole


@multiply_backward.register_fake
def _(
    _gradient: Tensor,
    inputs: Tensor,
    weight: Tensor,
    _workspace: Tensor,
    _found: Tensor,
    wants: Sequence[bool],
) -> list[Tensor]:
    return [
        torch.empty_like(each, memory_format=torch.contiguous_format)
        for each, is_wanted in zip((inputs, weight), wants, strict=True)
        if is_wanted
    ]


def activation_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """`[..., outputs]`, and `int64 [2]`: inputs that are not zero, and whether zeros were skipped.

    Args:
        inputs: `[..., features]`, 32-bit floats on the CPU; those that are zero get no gradient
            where zeros are skipped.
        weight: `[outputs, features]`.
        bias: `[outputs]`.
    """
    found = inputs.new_zeros(2, dtype=torch.int64)
    output: Tensor = _ActivationLinear.apply(inputs, weight, bias, found)  # type: ignore[no-untyped-call]
    return output, found


class _ActivationLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, found: Tensor
    ) -> Tensor:
        output: Tensor = multiply(inputs, weight, bias, _workspace(inputs), found)
        ctx.save_for_backward(inputs, weight, found)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, weight, found = ctx.saved_tensors
        gradient, wants = gradients[0], ctx.needs_input_grad
        of_inputs = of_weight = of_bias = None
        if wants[0] or wants[1]:
            room = _workspace(inputs)
            parts = multiply_backward(gradient, inputs, weight, room, found, list(wants[:2]))
            of_inputs = parts[0] if wants[0] else None
            of_weight = parts[-1] if wants[1] else None
        if wants[2]:
            is_one = inputs.ndim == MATRIX or inputs.is_contiguous()
            rows = gradient.reshape(-1, gradient.shape[-1])
            of_bias = rows.sum(0) if is_one else gradient.sum_to_size(gradient.shape[-1:])
        return of_inputs, of_weight, of_bias, None


def _rows(inputs: Tensor) -> Tensor:
    return inputs.detach().reshape(-1, inputs.shape[-1]).contiguous()


def _workspace(inputs: Tensor) -> Tensor:
    pieces = Pieces(inputs.shape[:-1].numel(), inputs.shape[-1])
    return inputs.new_empty(pieces.workspace_bytes, dtype=torch.uint8)


@register_flop_formula(torch.ops.openwafer.activation_linear)
def _flops(
    inputs: Sequence[int], weight: Sequence[int], *_others: object, **_keywords: object
) -> int:
    """Those of the dense product, which are the most there can be: zeros show with the values."""
    return 2 * torch.Size(inputs[:-1]).numel() * weight[0] * weight[1]


@register_flop_formula(torch.ops.openwafer.activation_linear_backward)
def _flops_backward(
    _gradient: Sequence[int],
    inputs: Sequence[int],
    weight: Sequence[int],
    _workspace: Sequence[int],
    _found: Sequence[int],
    wants: Sequence[bool],
    **_keywords: object,
) -> int:
    """As many for each gradient that is wanted."""
    return 2 * torch.Size(inputs[:-1]).numel() * weight[0] * weight[1] * sum(wants)


Floats = NDArray[np.float32]
Starts = NDArray[np.int64]


@compiled
def count(rows: Floats, counts: Starts) -> None:
    """Set `counts [rows]` to how many of each row are not zero."""
    for row in range(rows.shape[0]):
        found = np.int32(0)
        for column in range(rows.shape[1]):
            found += np.int32(rows[row, column] != 0)
        counts[row] = found


@compiled
def take(rows: Floats, columns: NDArray[Any], values: Floats) -> None:
    """Copy what is not zero, row after row; both lists have a place more than there is to copy."""
    place = 0
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            number = rows[row, column]
            # Written in any case: a branch that follows random zeros costs ten times as much.
            columns[place] = column
            values[place] = number
            place += number != 0


@compiled
def spread(starts: Starts, columns: NDArray[Any], values: Floats, rows: Floats) -> None:
    """Set rows to values at their columns, and to zero elsewhere."""
    for row in range(rows.shape[0]):
        rows[row, :] = 0
        for place in range(starts[row], starts[row + 1]):
            rows[row, columns[place]] = values[place]
