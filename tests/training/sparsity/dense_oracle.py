"""What a sparse product must give: the masked dense one in float64, and how far off sums may be."""

from dataclasses import dataclass

import torch
from torch import Tensor

from openwafer.training.sparsity.kernels.index import Index
from openwafer.training.sparsity.pattern import Pattern
from tests.training.sparsity.random_masks import random_mask

HALF_UNIT = 2.0**-24
"""Most that one rounding to 32 bits changes a number by, relatively."""


@dataclass(frozen=True)
class Case:
    """A sparse weight `[rows, columns]` with all that its products take."""

    pattern: Pattern
    weight: Tensor
    inputs: Tensor
    bias: Tensor
    gradient: Tensor

    @property
    def index(self) -> Index:
        """The index of its pattern."""
        return Index.of(self.pattern)

    @property
    def values(self) -> Tensor:
        """What the weight has at kept positions."""
        return self.pattern.values_of(self.weight)


def case_of(rows: int, columns: int, num_tokens: int, sparsity: float, seed: int = 0) -> Case:
    """Random numbers of that shape."""
    generator = torch.Generator().manual_seed(seed)
    mask = random_mask(rows, columns, sparsity, seed)
    shapes = ((rows, columns), (num_tokens, columns), (rows,), (num_tokens, rows))
    weight, *others = (torch.randn(shape, generator=generator) for shape in shapes)
    return Case(Pattern.from_mask(mask), weight * mask, *others)


@dataclass(frozen=True)
class Products:
    """Output, and gradients of inputs, values and bias."""

    output: Tensor
    of_inputs: Tensor
    of_values: Tensor
    of_bias: Tensor


def exact(case: Case) -> Products:
    """The products in float64."""
    weight, x, g = case.weight.double(), case.inputs.double(), case.gradient.double()
    of_values = case.pattern.values_of(g.T @ x)
    return Products(x @ weight.T + case.bias.double(), g @ weight, of_values, g.sum(0))


def bounds(case: Case) -> Products:
    """Most that sums of 32 bits in any order may be off: `n u / (1 - n u)` of what they sum.

    n is the number of roundings that a sum goes through at most (N. Higham, Accuracy and Stability
    of Numerical Algorithms, section 3.1): products, and one for the bias.
    """
    weight, x, g = (t.double().abs() for t in (case.weight, case.inputs, case.gradient))
    kept = case.pattern.mask()
    of_values = case.pattern.values_of(g.T @ x)
    return Products(
        _share(kept.sum(1) + 1) * (x @ weight.T + case.bias.double().abs()),
        _share(kept.sum(0)) * (g @ weight),
        _share(torch.tensor(len(x))) * of_values,
        _share(torch.tensor(len(x))) * g.sum(0),
    )


def _share(num_roundings: Tensor) -> Tensor:
    off = num_roundings.double() * HALF_UNIT
    return off / (1 - off)
