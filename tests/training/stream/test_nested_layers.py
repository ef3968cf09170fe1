"""Experts are layers inside a layer: fetched one at a time, in the backward pass too."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.plan_record import Activations
from tests.tables import case, checkerboard
from tests.training.stream.both_loops import (
    STREAMED,
    Parameters,
    Run,
    differing,
    plan,
    train_plainly,
    train_streamed,
)
from tests.training.stream.small_gpt import adamw

WIDTH = 128
NUM_EXPERTS = 8
EXPERT_BYTES = 4 * WIDTH * WIDTH


class Mixture(nn.Module):
    """Every expert sees every sample, and a router weighs what they say."""

    def __init__(self, experts: nn.ModuleList) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, NUM_EXPERTS)
        self.experts = experts

    def forward(self, x_BD: Tensor) -> Tensor:
        shares_BE = self.router(x_BD).softmax(-1)
        said = [expert(x_BD).tanh() for expert in self.experts]
        out: Tensor = x_BD + (torch.stack(said, -1) * shares_BE[:, None]).sum(-1)
        return out


def experts() -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_EXPERTS))


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Mixture(experts()), Mixture(experts()))


def build_with_shared_experts() -> nn.Module:
    torch.manual_seed(0)
    shared = experts()
    return nn.Sequential(Mixture(shared), Mixture(shared))


def loss_of(model: nn.Module, x_BD: Tensor) -> Tensor:
    loss: Tensor = model(x_BD).square().mean()
    return loss


RUN = Run(
    build,
    adamw,
    lambda generator: torch.randn(2, WIDTH, generator=generator),
    loss_of,
    num_steps=3,
)


def streamed(run: Run, policy: Activations) -> tuple[Parameters, int]:
    """Parameters and peak of device memory, under a budget of the very peak that was predicted."""
    planned = plan(run, replace(STREAMED, default_activations=policy))
    budget = planned.plan.predicted_peak_bytes
    capped = replace(planned, given=replace(planned.given, device_memory_bytes=budget))
    trained = train_streamed(run, capped)
    found = trained.parameters(), trained.peak_bytes
    trained.close()
    return found


@pytest.mark.parametrize(
    ("num_micro_batches", "policy"), checkerboard((1, 2), Activations, one_in=3)
)
def test_experts_that_stream_learn_what_resident_ones_do(
    num_micro_batches: int, policy: Activations
) -> None:
    run = replace(RUN, num_micro_batches=num_micro_batches)
    parameters, _ = streamed(run, policy)
    assert differing(parameters, train_plainly(run)) == []


@pytest.mark.parametrize(
    "policy", [case(one, by_default=one is Activations.RECOMPUTE) for one in Activations]
)
def test_the_device_never_holds_the_experts_of_a_block_together(policy: Activations) -> None:
    _, peak_bytes = streamed(RUN, policy)
    assert peak_bytes < NUM_EXPERTS * EXPERT_BYTES / 2


@pytest.mark.parametrize(
    "policy", [case(one, by_default=one is Activations.OFFLOAD) for one in Activations]
)
def test_experts_that_two_blocks_share_learn_what_resident_ones_do(policy: Activations) -> None:
    run = replace(RUN, build=build_with_shared_experts)
    parameters, _ = streamed(run, policy)
    assert differing(parameters, train_plainly(run)) == []
