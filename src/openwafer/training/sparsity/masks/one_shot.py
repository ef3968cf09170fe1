"""Pruning a trained linear map at once, by what its inputs are like: Wanda and SparseGPT.

Weights are [rows, columns], a row for each output and a column for each input feature, so those of
the transformers library's Conv1D are given transposed; inputs are [..., columns]. By magnitude and
at random a weight is pruned with ``magnitude_mask`` and ``random_mask``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.masks.selection import largest, magnitudes, require_finite
from openwafer.training.sparsity.masks.structures import (
    Blocks,
    NOfM,
    Structure,
    Unstructured,
    num_kept,
    require_fit,
)

COLUMNS_AT_ONCE = 128
DAMPING = 0.01
UNSTRUCTURED = Unstructured()


@dataclass(frozen=True)
class Pruned:
    """A pruned weight: `weights` [rows, columns], 0 where the bool `mask` does not keep them."""

    weights: Tensor
    mask: Tensor


def add_squares(sums: Tensor, inputs: Tensor) -> None:
    """Add the squares of `inputs` [..., columns] to `sums` [columns], fp64, in place."""
    sums += inputs.detach().reshape(-1, inputs.shape[-1]).to(sums.dtype).square().sum(dim=0)


def add_products(products: Tensor, inputs: Tensor) -> None:
    """Add x x^T of all x in `inputs` [..., columns] to `products` [columns, columns], in place."""
    flat = inputs.detach().reshape(-1, inputs.shape[-1]).to(products.dtype)
    products.addmm_(flat.T, flat)


def wanda_mask(
    weights: Tensor,
    square_sums: Tensor,
    sparsity: float,
    name: str,
    structure: Structure = UNSTRUCTURED,
) -> Tensor:
    """The mask of the largest ``|weight| * norm of its input feature`` in each row.

    Sun et al., arXiv 2306.11695: weights are compared within an output, so each row keeps
    ``int((1 - sparsity) * columns)``, or one more where that is no whole number, so that in all
    ``int((1 - sparsity) * numel)`` are kept; with an n:m structure, each group n of its m.

    Args:
        weights: [rows, columns].
        square_sums: [columns], see :func:`add_squares`.

    Raises:
        OpenwaferError: ``mask-shape``, ``one-shot-structure``, ``one-shot-inputs``.
    """
    _check(weights, square_sums, name, structure)
    scores = magnitudes(weights).double() * square_sums.double().sqrt()
    if isinstance(structure, NOfM):
        groups = scores.reshape(-1, structure.m)
        return largest(groups, num_kept(sparsity, structure.m)).reshape(weights.shape)
    rows, columns = scores.shape
    # Differences of totals, so that all rows together keep the exact number.
    totals = torch.tensor([num_kept(sparsity, row * columns) for row in range(rows + 1)])
    return largest(scores, totals.diff().to(scores.device))


def sparsegpt(
    weights: Tensor,
    products: Tensor,
    sparsity: float,
    name: str,
    structure: Structure = UNSTRUCTURED,
) -> Pruned:
    """Prune column after column, each time correcting the columns that follow for the error.

    Frantar and Alistarh, arXiv 2301.00774, algorithm 1. The mask is chosen for 128 columns at once
    (or, with an n:m structure, for m), by the squared weight over the diagonal of the inverse
    Hessian of what is left. A hundredth of the mean of its diagonal is added to the Hessian;
    everything is computed in fp64. Features that are always 0 get zero weights.

    Args:
        weights: [rows, columns].
        products: [columns, columns], see :func:`add_products`.

    Returns:
        In the dtype of `weights`. In all ``int((1 - sparsity) * numel)`` weights are kept, or n of
        every m.

    Raises:
        OpenwaferError: ``mask-shape``, ``one-shot-structure``, ``one-shot-inputs``.
    """
    _check(weights, products, name, structure)
    factor = _inverse_factor(products.double(), name)
    left = weights.detach().double().clone()
    left[:, products.diagonal() == 0] = 0.0
    mask = torch.ones_like(left, dtype=torch.bool)
    num_columns = weights.shape[1]
    at_once = structure.m if isinstance(structure, NOfM) else COLUMNS_AT_ONCE
    for start in range(0, num_columns, at_once):
        columns = slice(start, min(start + at_once, num_columns))
        mask[:, columns] = _chosen(left, factor, columns, sparsity, structure)
        _correct(left, mask, factor, columns)
    return Pruned(left.masked_fill(~mask, 0.0).to(weights.dtype), mask)


def _chosen(
    left: Tensor, factor: Tensor, columns: slice, sparsity: float, structure: Structure
) -> Tensor:
    scores = (left[:, columns] / factor.diagonal()[columns]).square()
    if isinstance(structure, NOfM):
        return largest(scores, num_kept(sparsity, structure.m))
    rows = left.shape[0]
    # Differences of totals, so that all columns together keep the exact number.
    number = num_kept(sparsity, rows * columns.stop) - num_kept(sparsity, rows * columns.start)
    return largest(scores.reshape(1, -1), number).reshape(scores.shape)


def _correct(left: Tensor, mask: Tensor, factor: Tensor, columns: slice) -> None:
    """Drop what `mask` does not keep in `columns`, and correct `left` to their right."""
    errors = torch.zeros_like(left[:, columns])
    for index in range(columns.start, columns.stop):
        dropped = left[:, index].masked_fill(mask[:, index], 0.0) / factor[index, index]
        inside = slice(index, columns.stop)
        left[:, inside] -= torch.outer(dropped, factor[index, inside])
        errors[:, index - columns.start] = dropped
    left[:, columns.stop :] -= errors @ factor[columns, columns.stop :]


def _inverse_factor(products: Tensor, name: str) -> Tensor:
    """Upper U with U^T U the inverse of the damped Hessian.

    Row j of U, times U[j, j], is the first row of the inverse of the Hessian from j on.
    """
    damping = DAMPING * products.diagonal().mean()
    if not float(damping) > 0:
        raise _wrong_inputs(name, "all inputs that were seen are 0")
    hessian = products.clone()
    hessian.diagonal().add_(damping)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor


def _check(weights: Tensor, statistics: Tensor, name: str, structure: Structure) -> None:
    require_fit(structure, tuple(weights.shape), name)
    if isinstance(structure, Blocks):
        raise error(
            "one-shot-structure",
            f"{name} cannot be pruned in {structure} by its inputs, which rank single weights",
            help="choose the method magnitude",
        )
    if statistics.shape[-1] != weights.shape[1]:
        raise _wrong_inputs(
            name, f"its inputs have {statistics.shape[-1]} features and it {weights.shape[1]}"
        )
    require_finite(weights, name)
    if not bool(statistics.isfinite().all()):
        raise _wrong_inputs(name, "inputs that were seen are not finite")


def _wrong_inputs(name: str, reason: str) -> OpenwaferError:
    return error(
        "one-shot-inputs",
        f"{name} cannot be pruned by its inputs: {reason}",
        help="give it other inputs, or choose the method magnitude",
    )
