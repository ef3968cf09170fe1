"""Compiles what many tests run, so that their processes do not all compile it at the same time.

As a program, it fills numba's caches of a fresh clone.
"""

import torch
from numba import types
from torch import nn

from openwafer.sdk.fabric import engine
from openwafer.training.sparsity.activations import activation_linear
from openwafer.training.sparsity.kernels.processor import peak_flops
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.products import Products
from tests.sdk.fabric.python_code import PythonCode, image, program

INPUTS, OUTPUTS, TOKENS, ONE_IN = 150, 70, 130, 5
MANY_TOKENS, ZEROS = 512, 0.95


def run_fabric() -> None:
    """Compile the core of the simulator."""
    PythonCode([]).simulator(program([[0]], [image("idle")])).run_until_idle()
    engine.look_address()
    engine.prepare(engine.set_register, [types.int64] * 4)


def multiply() -> None:
    """Compile the products of sparse weights, and their backwards."""
    mask = (torch.arange(OUTPUTS * INPUTS) % ONE_IN == 0).view(OUTPUTS, INPUTS)
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS))
    pack_linears(model, {"0.weight": int(mask.sum())}, lambda *_: mask, Products.SPARSE)
    model(torch.randn(TOKENS, INPUTS, requires_grad=True)).sum().backward()


def skip_zeros() -> None:
    """Compile the products of inputs that are mostly zero, and what they are compared with."""
    inputs = nn.functional.dropout(torch.ones(MANY_TOKENS, INPUTS), ZEROS).requires_grad_()
    output, _ = activation_linear(inputs, torch.ones(OUTPUTS, INPUTS, requires_grad=True), None)
    output.sum().backward()
    peak_flops()


if __name__ == "__main__":
    run_fabric()
    multiply()
    skip_zeros()
