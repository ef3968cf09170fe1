"""The operators of updates are counted without memory, for any rule."""

from collections.abc import Callable

import pytest
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from openwafer.training.stream.layers import partition
from openwafer.training.stream.link.updates import UpdateCounts, Updater
from openwafer.training.stream.plan.operators import CallsByKind
from openwafer.training.stream.plan.step_time import update_calls
from openwafer.training.stream.records import lay_out_records


def calls_of(num_layers: int, optimize: Callable[[nn.Module], Optimizer]) -> CallsByKind:
    """Those of a step of like layers."""
    layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(num_layers))
    model = nn.ModuleDict({"layers": layers})
    updater = Updater(optimize(model), model)
    parameters = dict(model.named_parameters())
    layouts = lay_out_records(
        partition(model, min_layer_bytes=1),
        parameters=parameters,
        state_arrays=updater.state_arrays,
        keeps_gradients=False,
    )
    calls = update_calls(layouts, parameters, updater, clips=False)
    assert updater.counts == UpdateCounts()
    return calls


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), fused=True)


def number_of(calls: CallsByKind, name: str) -> int:
    return sum(one.number for kind, one in calls.items() if name in str(kind.function))


def test_each_parameter_is_updated_by_one_fused_kernel() -> None:
    assert number_of(calls_of(3, adamw), "fused_adamw") == 3


def test_layers_that_are_alike_are_counted_as_often_as_there_are() -> None:
    few, many = calls_of(2, adamw), calls_of(6, adamw)
    assert {kind: calls.number // 2 for kind, calls in few.items()} == {
        kind: calls.number // 6 for kind, calls in many.items()
    }


@pytest.mark.parametrize(
    ("optimize", "has_products"),
    [(lambda m: SGD(m.parameters(), momentum=0.9), False), (lambda m: Muon(m.parameters()), True)],
)
def test_a_rule_with_matrix_products_has_their_flops(
    optimize: Callable[[nn.Module], Optimizer], has_products: bool
) -> None:
    flops = sum(calls.flops * calls.number for calls in calls_of(2, optimize).values())
    assert (flops > 0) is has_products
