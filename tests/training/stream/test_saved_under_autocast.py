"""Modules that see their weights in parts, or conjugated, train as in the plain loop."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openwafer.training.plan_record import Activations
from tests.tables import checkerboard, some
from tests.training.stream.both_loops import Run, differing_under

WIDTH = 8


class ThreeInputs(nn.MultiheadAttention):
    """Attention whose query, key and value differ, so that it takes its packed weight apart."""

    def forward(self, x_TD: Tensor) -> Tensor:  # type: ignore[override]
        out_TD: Tensor = super().forward(x_TD, 2 * x_TD, x_TD.tanh(), need_weights=False)[0]
        return x_TD + out_TD


class Experts(nn.Module):
    """Experts in one tensor, called row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH)

    def forward(self, x_TD: Tensor) -> Tensor:
        return x_TD + sum(F.linear(x_TD, expert_DD) for expert_DD in self.weight)


class Conjugated(nn.Module):
    """Saves a complex tensor as it is, conjugated and in part, each on one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64) / WIDTH)

    def forward(self, x_TD: Tensor) -> Tensor:
        z_TD = torch.complex(x_TD.float(), x_TD.float()) * self.weight
        both_TD = z_TD * z_TD.conj() + z_TD * z_TD.conj().imag * self.weight.conj()
        return x_TD + both_TD.real


def run_of(layer: type[nn.Module], num_tokens: int) -> Run:
    return Run(
        build=partial(_build, layer),
        optimize=lambda model: torch.optim.SGD(model.parameters(), lr=1e-2),
        draw=lambda generator: torch.randn(num_tokens, WIDTH, generator=generator),
        loss_of=_loss_of,
        num_steps=2,
    )


def _build(layer: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    arguments = (WIDTH, 2) if layer is ThreeInputs else ()
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), layer(*arguments), layer(*arguments))


def _loss_of(model: nn.Module, x_TD: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss: Tensor = model(x_TD).float().square().mean()
    return loss


@pytest.mark.parametrize(
    ("layer", "policy"), checkerboard((ThreeInputs, Experts), Activations, one_in=3)
)
def test_parts_of_a_weight(layer: type[nn.Module], policy: Activations) -> None:
    assert differing_under(run_of(layer, num_tokens=4), policy) == []


@pytest.mark.parametrize("policy", some(Activations, Activations.RECOMPUTE))
def test_conjugates_on_one_storage(policy: Activations) -> None:
    assert differing_under(run_of(Conjugated, num_tokens=300), policy) == []
