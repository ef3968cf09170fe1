"""Masks that are chosen at once: those that training begins with, and those of a trained model.

A mask is a bool tensor of the weight's shape, True where a weight is kept. It is a function of its
arguments alone, and keeps ``int((1 - sparsity) * numel)`` weights (:func:`num_kept`; in each group
of an n:m structure, or of the number of blocks).

Wanda and SparseGPT prune by what the inputs of a trained linear map are like. Weights are [rows,
columns] there, a row for each output and a column for each input feature, so those of the
transformers library's Conv1D are given transposed; inputs are [..., columns].
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.masks.structures import (
    Blocks,
    NOfM,
    Shape,
    Structure,
    Unstructured,
    largest,
    magnitudes,
    num_kept,
    random_scores,
    require_finite,
    require_fit,
)

UNSTRUCTURED = Unstructured()


class InitMethod(StrEnum):
    """How an initial mask is chosen; names of ``cerebras.pytorch.sparse``."""

    RANDOM = "random"
    TOPK = "topk"
    CHECKERBOARD = "checkerboard"


def random_mask(
    shape: Shape, sparsity: float, name: str, seed: int, structure: Structure = UNSTRUCTURED
) -> Tensor:
    """A mask of `shape` that keeps random units, drawn for the parameter `name` from `seed`."""
    require_fit(structure, shape, name)
    scores = random_scores(structure.grid(shape), seed, 0, name)
    return structure.spread(largest(scores, num_kept(sparsity, scores.shape[1])), shape)


def magnitude_mask(
    weights: Tensor, sparsity: float, name: str, structure: Structure = UNSTRUCTURED
) -> Tensor:
    """A mask of the largest magnitudes of `weights`, any shape.

    Raises:
        OpenwaferError: ``mask-shape``; ``weights-not-finite``.
    """
    require_fit(structure, tuple(weights.shape), name)
    require_finite(weights, name)
    scores = structure.unit_scores(magnitudes(weights))
    marked = largest(scores, num_kept(sparsity, scores.shape[1]))
    return structure.spread(marked, tuple(weights.shape))


def checkerboard_mask(
    shape: Shape, sparsity: float, name: str, structure: Structure = UNSTRUCTURED
) -> Tensor:
    """A mask of evenly spaced diagonals; at sparsity 0.5 a checkerboard."""
    require_fit(structure, shape, name)
    num_units = structure.grid(shape)[1]
    number = num_kept(sparsity, num_units)
    # Diagonal d is taken where d * number / num_units has just passed a whole number.
    past_whole = structure.diagonals(shape).mul_(number).remainder_(num_units)
    return structure.spread(largest(num_units - 1 - past_whole, number), shape)


def initial_mask(
    method: InitMethod,
    weights: Tensor,
    sparsity: float,
    name: str,
    seed: int,
    structure: Structure = UNSTRUCTURED,
) -> Tensor:
    """The mask that `method` chooses for `weights`, whose values only ``topk`` reads."""
    shape = tuple(weights.shape)
    match method:
        case InitMethod.RANDOM:
            mask = random_mask(shape, sparsity, name, seed, structure)
        case InitMethod.TOPK:
            mask = magnitude_mask(weights, sparsity, name, structure)
        case InitMethod.CHECKERBOARD:
            mask = checkerboard_mask(shape, sparsity, name, structure)
    return mask if weights.device.type == "meta" else mask.to(weights.device)


COLUMNS_AT_ONCE = 128
DAMPING = 0.01


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
