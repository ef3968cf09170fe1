"""A model with packed weights streams: planned to the byte, to the bits of the plain loop."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.plan_record import Activations
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.products import Products
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import checkerboard
from tests.training.stream.both_loops import (
    STREAMED,
    Run,
    differing,
    on_tier,
    plan,
    train_plainly,
    train_streamed,
)
from tests.training.stream.small_gpt import build_gpt, gpt_run

HOST_BYTES = 1 << 30


def quarter(_name: str, weight: Tensor) -> Tensor:
    """The largest quarter of a weight."""
    order = weight.abs().flatten().argsort(descending=True)
    mask = torch.zeros(weight.numel(), dtype=torch.bool)
    mask[order[: weight.numel() // 4]] = True
    return mask.view(weight.shape)


def build_sparse(products: Products) -> nn.Module:
    model = build_gpt()
    hidden = {
        name: weight.numel() // 4
        for name, weight in model.named_parameters()
        if name.startswith("layers.") and weight.ndim == 2
    }
    pack_linears(model, hidden, quarter, products)
    return model


def optimize(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-2, fused=True)


def sparse_run(products: Products) -> Run:
    run = gpt_run(num_steps=6, num_micro_batches=2)
    return replace(run, build=partial(build_sparse, products), optimize=optimize)


@pytest.mark.parametrize(
    ("products", "tier", "policy"),
    checkerboard(
        (Products.SPARSE, Products.DENSE),
        (StoreTier.DRAM, StoreTier.DISK),
        tuple(Activations),
        one_in=8,
    ),
)
def test_packed_weights_stream(
    products: Products, tier: StoreTier, policy: Activations, tmp_path: Path
) -> None:
    run = sparse_run(products)
    options = replace(STREAMED, default_activations=policy, min_layer_bytes=1)
    planned = on_tier(plan(run, options), tier, HOST_BYTES)
    streamed = train_streamed(run, planned, folder=tmp_path)
    found, peak_bytes, unplanned = streamed.parameters(), streamed.peak_bytes, streamed.unplanned
    streamed.close()
    assert differing(found, train_plainly(run)) == []
    assert (peak_bytes, unplanned) == (planned.plan.dry.peak_bytes, [])
