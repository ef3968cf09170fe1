"""Where policies are given, a plan needs no first walk that goes back, and is the same plan."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.plan_record import Activations
from openwafer.training.stream.assemble import Planned, plan_run
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.search import foreseen_plan, walked_plan
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.stream_options import PlanInput
from tests.tables import some
from tests.training.architectures import ARCHITECTURES, Architecture
from tests.training.stream.both_loops import STREAMED, Run, plan
from tests.training.stream.small_gpt import adamw

WIDTH = 16


class Layers(nn.Module):
    """Layers in a row, of which one may be called in vain, and one may be frozen."""

    def __init__(self, *, is_frozen: bool = False, has_vain: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.vain = nn.Linear(WIDTH, WIDTH)
        self.layers[0].requires_grad_(not is_frozen)
        self.has_vain = has_vain

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.has_vain:
                self.vain(x)
            x = torch.tanh(layer(x))
        return x


def planned(build: Callable[[], nn.Module], policy: Activations | None) -> Planned:
    run = Run(
        build,
        adamw,
        lambda generator: torch.randn(8, WIDTH, generator=generator),
        lambda model, x: model(x).pow(2).mean(),
        num_steps=1,
        num_micro_batches=2,
    )
    return plan(run, replace(STREAMED, min_layer_bytes=1, default_activations=policy))


@pytest.mark.parametrize("policy", some([None, *Activations], None, Activations.RECOMPUTE))
def test_a_plan_is_that_of_a_search_whose_first_walk_goes_back(policy: Activations | None) -> None:
    found = planned(Layers, policy)
    # Not in one line: pytest would write all of both plans out.
    is_foreseen = foreseen_plan(found.request) == found.plan
    is_same = walked_plan(found.request) == found.plan
    assert is_foreseen
    assert is_same


@pytest.mark.parametrize(
    "build",
    [lambda: Layers(is_frozen=True), lambda: Layers(has_vain=True)],
    ids=["a frozen layer", "a layer of no effect"],
)
def test_nothing_is_foreseen_where_a_layer_is_not_met_again(
    build: Callable[[], nn.Module],
) -> None:
    found = planned(build, Activations.KEEP)
    assert foreseen_plan(found.request) is None
    assert found.plan == walked_plan(found.request)


def loss_of(model: nn.Module, batch: object) -> Tensor:
    assert isinstance(batch, dict)
    loss: Tensor = model(**batch).loss
    return loss


@pytest.mark.slow
@pytest.mark.parametrize("policy", Activations)
@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.name)
def test_plans_of_all_architectures_are_those_of_whole_walks(
    row: Architecture, policy: Activations
) -> None:
    model = row.build()
    workload = Workload(model, [row.batch(number, 2) for number in range(2)], loss_of)
    options = replace(STREAMED, min_layer_bytes=1, default_activations=policy)
    updater = Updater(torch.optim.SGD(model.parameters(), lr=1e-3), model)
    found = plan_run(workload, updater, PlanInput(options, 1 << 30), folder=None)
    if found.plan.dry.depends_on_values:
        pytest.skip("each walk has random weights of its own, which decide what it computes")
    assert found.plan == walked_plan(found.request)
