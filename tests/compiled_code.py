"""Compiles what many tests run, so that their processes do not all compile it at the same time.

As a program, it fills numba's caches of a fresh clone.
"""

import torch
from torch import nn

from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.products import Products
from tests.sdk.fabric.python_code import PythonCode, image, program

INPUTS, OUTPUTS, TOKENS, ONE_IN = 150, 70, 130, 5


def run_fabric() -> None:
    """Compile the core of the simulator."""
    PythonCode([]).simulator(program([[0]], [image("idle")])).run_until_idle()


def multiply() -> None:
    """Compile the products of sparse weights, and their backwards."""
    mask = (torch.arange(OUTPUTS * INPUTS) % ONE_IN == 0).view(OUTPUTS, INPUTS)
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS))
    pack_linears(model, {"0.weight": int(mask.sum())}, lambda *_: mask, Products.SPARSE)
    model(torch.randn(TOKENS, INPUTS, requires_grad=True)).sum().backward()


if __name__ == "__main__":
    run_fabric()
    multiply()
