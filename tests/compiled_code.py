"""Compiles what many tests run, so that their processes do not all compile it at the same time.

As a program, it fills numba's caches of a fresh clone.
"""

import torch
from torch import nn

from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.products import Products
from tests.sdk.fabric.python_code import PythonCode, image, program

INPUTS, OUTPUTS, TOKENS, KEPT = 150, 70, 130, 2100


def run_fabric() -> None:
    """Compile the core of the simulator."""
    PythonCode([]).simulator(program([[0]], [image("idle")])).run_until_idle()


def multiply() -> None:
    """Compile the products of sparse weights, and their backwards."""
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS))
    pack_linears(
        model, {"0.weight": KEPT}, lambda _, weight: torch.rand(weight.shape) < 0.2, Products.SPARSE
    )
    model(torch.randn(TOKENS, INPUTS, requires_grad=True)).sum().backward()


if __name__ == "__main__":
    run_fabric()
    multiply()
