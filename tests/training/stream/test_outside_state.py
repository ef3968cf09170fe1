"""A layer that changes what is not its own keeps or offloads its activations, never recomputes."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from tests.tables import case
from tests.training.stream import layers_with_outside_state as outside
from tests.training.stream.layers_with_state import WIDTH, Bare, Chain
from tests.training.stream.own_loops import PLAINLY, WAYS, Way, differing, run_loop

REASONS = {
    outside.GlobalCounter: "CALLS",
    outside.GlobalList: "SEEN",
    outside.GlobalTensor: "TOTAL",
    outside.ClassCounter: "ClassCounter",
    outside.ClosureCounter: r"count_on\.count",
    outside.SharedObject: r"statistics\.num_calls",
    outside.InputInPlace: "an input, in place",
}
kinds = pytest.mark.parametrize("kind", outside.KINDS, ids=lambda kind: str(kind.__name__))


@pytest.fixture(autouse=True)
def from_zero() -> Iterator[None]:
    outside.start_anew()
    yield
    outside.start_anew()


def build(kind: type[Bare]) -> nn.Module:
    return Chain(kind(), Bare2(), kind())


class Bare2(Bare):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.exp(self.inner(x_BTD))


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        case(
            kind,
            way,
            by_default=way == "planned" and number % 2 == 0,
            id=f"{kind.__name__}-{way}",
        )
        for number, kind in enumerate(outside.KINDS)
        for way in ("planned", "keep", "offload")
    ],
)
def test_what_layers_learn_and_count_is_what_the_plain_loop_does(
    kind: type[Bare], way: str
) -> None:
    plain = run_loop(lambda: build(kind), PLAINLY)
    counted = outside.counts()
    outside.start_anew()
    streamed = run_loop(lambda: build(kind), WAYS[way])
    assert differing(streamed, plain) == []
    assert outside.counts() == counted


@kinds
def test_forced_recomputation_is_refused_in_the_plan_with_the_reason(kind: type[Bare]) -> None:
    text = rf"layer 'layers\.0' are set to recompute, .* its forward changes .*{REASONS[kind]}"
    with pytest.raises(OpenwaferError, match=text):
        run_loop(lambda: build(kind), WAYS["recompute"])


@pytest.mark.slow
def test_beside_layers_that_cannot_the_others_recompute_under_a_small_budget() -> None:
    def build_long() -> nn.Module:
        return Chain(*(Wide() if number == 1 else WideLike() for number in range(6)))

    plain = run_loop(build_long, PLAINLY)
    outside.start_anew()
    streamed = run_loop(build_long, Way(budget="36KiB"))
    assert differing(streamed, plain) == []
    assert streamed.plan is not None
    policies = {layer.name: layer.activations for layer in streamed.plan.layers}
    assert policies["layers.0"] is Activations.RECOMPUTE
    assert policies["layers.1"] is not Activations.RECOMPUTE


class WideLike(Bare2):
    """Leaves enough to be worth recomputing."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        for _ in range(8):
            x_BTD = super().forward(0.1 * x_BTD)
        return x_BTD


class Wide(WideLike):
    def forward(self, x_BTD: Tensor) -> Tensor:
        outside.SEEN.append(0.5)
        return super().forward(x_BTD) / len(outside.SEEN)


def grown(model: nn.Module, step: int) -> Tensor:
    torch.manual_seed(step)
    loss: Tensor = model([torch.randn(2, 3, WIDTH)])
    loss.backward()
    return loss


class Dense(Bare):
    """A layer of a DenseNet: it takes all that came before, and adds its own to the list."""

    def forward(self, features: list[Tensor]) -> Tensor:
        features.append(torch.exp(self.inner(torch.stack(features).mean(0))))
        return features[-1]


class DenseChain(Chain):
    def forward(self, features: list[Tensor]) -> Tensor:  # type: ignore[override]
        for layer in self.layers:
            layer(features)
        return torch.stack(features).square().mean()


@pytest.mark.parametrize("way", ["recompute", "planned"])
def test_a_list_that_layers_append_to_is_as_it_was_when_they_run_again(way: str) -> None:
    plain, streamed = (
        run_loop(lambda: DenseChain(Dense(), Dense(), Dense()), each, grown)
        for each in (PLAINLY, WAYS[way])
    )
    assert differing(streamed, plain) == []
