"""A layer with a state of any kind learns what the plain loop learns, whatever the policy."""

import pytest
import torch
from torch import Tensor, nn

from tests.tables import case, some
from tests.training.stream.layers_with_state import KINDS, WIDTH, Bare, Chain, Counter
from tests.training.stream.own_loops import PLAINLY, WAYS, differing, run_loop

every_kind_every_way = pytest.mark.parametrize(
    ("kind", "way"),
    [
        case(
            kind,
            way,
            by_default=way == "recompute" and number % 2 == 0,
            id=f"{kind.__name__}-{way}",
        )
        for number, kind in enumerate(KINDS)
        for way in WAYS
    ],
)


def build(kind: type[Bare]) -> nn.Module:
    return Chain(kind(), kind(), kind())


@every_kind_every_way
def test_weights_buffers_and_attributes_are_those_of_the_plain_loop(
    kind: type[Bare], way: str
) -> None:
    plain, streamed = (run_loop(lambda: build(kind), each) for each in (PLAINLY, WAYS[way]))
    assert differing(streamed, plain) == []


def twice(model: nn.Module, step: int) -> Tensor:
    """One forward, two backwards."""
    torch.manual_seed(step)
    loss: Tensor = model(torch.randn(2, 3, WIDTH))
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def crossed(model: nn.Module, step: int) -> Tensor:
    """Two forwards, whose backwards come in the order of the forwards."""
    torch.manual_seed(step)
    first, second = model(torch.randn(2, 3, WIDTH)), model(torch.randn(2, 3, WIDTH))
    first.backward()
    second.backward()
    both: Tensor = first + second
    return both


def switched(model: nn.Module, step: int) -> Tensor:
    """The model is in another mode when its backward comes."""
    torch.manual_seed(step)
    loss: Tensor = model.train()(torch.randn(2, 3, WIDTH))
    model.eval()
    loss.backward()
    return loss


class Dropping(Counter):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x_BTD), 0.5, self.training)


@pytest.mark.parametrize("step", some([twice, crossed, switched], crossed))
def test_a_recomputed_layer_sees_what_its_own_forward_saw(step: object) -> None:
    plain, streamed = (
        run_loop(lambda: build(Dropping), way, step)  # type: ignore[arg-type]
        for way in (PLAINLY, WAYS["recompute"])
    )
    assert differing(streamed, plain) == []
