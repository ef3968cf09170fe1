"""The plan counts a step's floating-point operations as one does by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.products import Products
from openwafer.training.stream.stream_options import StreamOptions
from tests.training.stream.both_loops import STREAMED, Run, plan

ROWS, WIDE, NARROW = 6, 10, 4
KEPT = replace(STREAMED, min_layer_bytes=0, default_activations=Activations.KEEP)
RECOMPUTED = replace(KEPT, default_activations=Activations.RECOMPUTE)
RESIDENT = replace(KEPT, mode=Mode.RESIDENT)


FIRST, SECOND = 2 * ROWS * WIDE * NARROW, 2 * ROWS * NARROW * NARROW
# The first layer passes no gradient on to its input.
KEPT_FLOPS = 2 * FIRST + 3 * SECOND


def run(num_micro_batches: int = 1) -> Run:
    """Two linear layers, the first with a function whose backward needs what it returned."""
    return Run(
        build=lambda: nn.Sequential(
            nn.Sequential(nn.Linear(WIDE, NARROW), nn.Tanh()), nn.Linear(NARROW, NARROW)
        ),
        optimize=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        draw=lambda generator: torch.randn(ROWS, WIDE, generator=generator),
        loss_of=lambda model, x: model(x).sum(),
        num_steps=1,
        num_micro_batches=num_micro_batches,
    )


@pytest.mark.parametrize("options", [KEPT, RESIDENT], ids=["streamed", "resident"])
@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_they_are_two_for_each_multiplication(
    options: StreamOptions, num_micro_batches: int
) -> None:
    counted = plan(run(num_micro_batches), options).outline.step_flops
    assert counted == num_micro_batches * KEPT_FLOPS


def test_what_is_recomputed_counts_again() -> None:
    # What the second layer needs for its backward is its input, so nothing of it runs again.
    assert plan(run(), RECOMPUTED).outline.step_flops == KEPT_FLOPS + FIRST


def packed_run(products: Products) -> Run:
    """The same layers; of the first weight 10 of 40 positions are kept at most, of the second 4."""
    dense = run()

    def build() -> nn.Module:
        model = dense.build()
        room = {"0.0.weight": 10, "1.weight": 4}
        pack_linears(model, room, lambda _, weight: torch.eye(*weight.shape).bool(), products)
        return model

    def optimize(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    return replace(dense, build=build, optimize=optimize)


@pytest.mark.parametrize("options", [KEPT, RESIDENT], ids=["streamed", "resident"])
def test_products_that_skip_zeros_count_the_positions_there_is_room_for(
    options: StreamOptions,
) -> None:
    counted = plan(packed_run(Products.SPARSE), options).outline.step_flops
    assert counted == 2 * (2 * ROWS * 10) + 3 * (2 * ROWS * 4)


@pytest.mark.parametrize("options", [KEPT, RESIDENT], ids=["streamed", "resident"])
def test_packed_weights_that_are_spread_out_count_like_dense_ones(options: StreamOptions) -> None:
    assert plan(packed_run(Products.DENSE), options).outline.step_flops == KEPT_FLOPS
