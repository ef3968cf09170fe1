"""The mask that training begins with: random, the largest weights, or a checkerboard.

A mask is a bool tensor of the weight's shape, True where a weight is kept. Each keeps
``int((1 - sparsity) * numel)`` weights (:func:`num_kept`; in each group of an n:m structure, or of
the number of blocks). It is a function of its arguments alone.
"""

from enum import StrEnum

from torch import Tensor

from openwafer.training.sparsity.masks.selection import (
    largest,
    magnitudes,
    random_scores,
    require_finite,
)
from openwafer.training.sparsity.masks.structures import (
    Shape,
    Structure,
    Unstructured,
    num_kept,
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
