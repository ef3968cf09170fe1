"""A search of a deep model walks few of its like layers, and plans what it plans with all."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from openwafer.training.plan_record import Activations
from openwafer.training.stream.plan.search import StreamPlan
from tests.tables import case
from tests.training.stream.both_loops import STREAMED, Run, plan
from tests.training.stream.small_gpt import adamw

WIDTH, NUM_LAYERS, NUM_MICRO_BATCHES = 32, 8, 2
ODD = 3


class Layer(nn.Module):
    def __init__(self, activation: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(self.activation(self.wide(x)))
        return out


class InTuple(Layer):
    """A layer whose result is one of several."""

    def forward(self, x: Tensor) -> Any:
        return None, super().forward(x), "seen"


class Scratch(torch.autograd.Function):
    """The identity, whose backward takes memory that its forward tells nothing of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, num_floats: int) -> Tensor:
        ctx.num_floats = num_floats
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        torch.empty(ctx.num_floats).zero_()
        return gradient * 1.0, None


class WithScratch(Layer):
    def __init__(self, num_floats: int) -> None:
        super().__init__()
        self.num_floats = num_floats

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Scratch.apply(super().forward(x), self.num_floats)  # type: ignore[no-untyped-call]
        return out


class Deep(nn.Module):
    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(make, range(NUM_LAYERS)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            out = layer(x)
            x = out if isinstance(out, Tensor) else out[1]
        return x


class WantsNewTensors(Deep):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if x._is_view():  # noqa: SLF001 - no public name
                raise ValueError("a layer has returned a view")
        return x


def by_turns(index: int) -> nn.Module:
    return Layer((nn.GELU, nn.SiLU)[index % 2])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "alike": lambda: Deep(lambda _: Layer()),
    "by turns": lambda: Deep(by_turns),
    "in tuples": lambda: Deep(lambda _: InTuple()),
    "views refused": lambda: WantsNewTensors(lambda _: Layer()),
    "odd backward": lambda: Deep(lambda index: WithScratch(22_000 if index == ODD else 1)),
}


def planned(name: str, budget: int | None = None, **options: Any) -> StreamPlan:
    run = Run(
        MODELS[name],
        adamw,
        lambda generator: torch.randn(8, WIDTH, generator=generator),
        lambda model, x: model(x).pow(2).mean(),
        num_steps=1,
        num_micro_batches=NUM_MICRO_BATCHES,
    )
    return plan(run, replace(STREAMED, min_layer_bytes=1, **options), budget=budget).plan


@cache
def middle_budget() -> int:
    """Device bytes in which about half of the layers can keep their activations."""
    policies = Activations.RECOMPUTE, Activations.KEEP
    ends = [planned("alike", default_activations=policy) for policy in policies]
    return sum(end.predicted_peak_bytes for end in ends) // 2


@pytest.mark.parametrize("name", [case(name, by_default=name == "odd backward") for name in MODELS])
def test_the_plan_is_that_of_a_search_that_walks_every_layer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = middle_budget()
    found = planned(name, budget)
    search = "openwafer.training.stream.plan.search"
    monkeypatch.setattr(f"{search}.like_earlier_ones", lambda *_: {})
    assert found == planned(name, budget)
    assert {*found.policies.values()} > {Activations.KEEP}


class CountsGelu(TorchFunctionMode):
    """Counts the calls of what every layer calls once in a forward, and not those of backwards."""

    num_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public name
        self.num_calls += func is nn.functional.gelu and not in_backward
        return func(*args, **kwargs or {})


@pytest.mark.slow
def test_all_layers_are_walked_twice_and_a_few_in_each_try_between() -> None:
    budget = middle_budget()
    with CountsGelu() as counts:
        planned("alike", budget)
    num_all = NUM_LAYERS * NUM_MICRO_BATCHES
    assert 2 * num_all < counts.num_calls < 2 * num_all + 5 * 8 * NUM_MICRO_BATCHES


def test_a_plan_with_room_for_all_activations_tries_no_other() -> None:
    with CountsGelu() as counts:
        planned("alike")
    num_all = NUM_LAYERS * NUM_MICRO_BATCHES
    assert 2 * num_all < counts.num_calls < 2 * num_all + 8 * NUM_MICRO_BATCHES
