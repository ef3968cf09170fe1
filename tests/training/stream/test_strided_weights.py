"""Weights that are not contiguous: kernels and optimizers meet the strides of the plain loop."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Activations
from tests.tables import case, some
from tests.training.stream.both_loops import STREAMED, Run, differing_under
from tests.training.stream.foreign_loops import Loop, are_equal, new_loop, outcome, stream

SIZE = 33


def transposed(shape: tuple[int, int]) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape[::-1]).div(6).t())


class Mixed(nn.Module):
    """A transposed weight, one in channels_last order, and one of which a size is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.linear.weight = transposed((SIZE, SIZE))
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.depthwise = nn.Conv2d(3, 3, 3, padding=1, groups=3)
        for conv in (self.conv, self.depthwise):
            conv.weight = nn.Parameter(conv.weight.detach().to(memory_format=torch.channels_last))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        out: Tensor = self.linear(self.depthwise(self.conv(x_BCHW)).tanh())
        return out


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mixed() for _ in range(3))
        self.scale = transposed((SIZE, SIZE))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        for layer in self.layers:
            x_BCHW = x_BCHW + layer(x_BCHW) @ self.scale
        return x_BCHW


def build() -> nn.Module:
    torch.manual_seed(0)
    return Strided()


RUN = Run(
    build,
    lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    lambda generator: torch.randn(2, 3, SIZE, SIZE, generator=generator),
    lambda model, batch: model(batch).pow(2).mean(),
    num_steps=3,
    num_micro_batches=2,
    clip_norm=0.1,
)


@pytest.mark.parametrize(
    "policy", [case(one, by_default=one is Activations.RECOMPUTE) for one in Activations]
)
def test_a_step_over_strided_weights_is_the_plain_step(policy: Activations) -> None:
    assert differing_under(RUN, policy) == []


class Square(nn.Module):
    """Layers over one transposed weight each."""

    def __init__(self, place: Callable[[Tensor], Tensor] = Tensor.t) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        for layer in self.layers:
            layer.register_parameter("weight", nn.Parameter(place(torch.randn(32, 32) / 6)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def trains_and_looks(loop: Loop) -> list[object]:
    seen: list[object] = []
    for step in range(3):
        loop.backward(step)
        weight = loop.model.get_submodule("layers.1").weight
        assert isinstance(weight, nn.Parameter)
        assert weight.grad is not None
        seen += [weight.stride(), weight.is_contiguous(), weight.grad.stride()]
        seen += [weight.norm().item(), (weight @ weight.grad).detach(), weight.grad.clone()]
        loop.step()
        weight.data.mul_(0.9)
        state = loop.optimizer.state[weight]["exp_avg"]
        seen += [state.stride(), state.norm().item(), weight.detach().clone().stride()]
    return seen


@pytest.mark.parametrize("policy", some(Activations, Activations.OFFLOAD))
def test_a_loop_finds_weights_gradients_and_states_as_they_lie(policy: Activations) -> None:
    found = outcome(trains_and_looks, build=Square, policy=policy)
    assert are_equal(found, outcome(trains_and_looks, build=Square, streams=False))


def gradient_replaced(loop: Loop) -> None:
    loop.backward()
    for parameter in loop.parameters:
        parameter.grad = torch.ones_like(parameter) / 7
    loop.step()
    for parameter in loop.parameters:
        parameter.data = parameter.detach() * 0.5


def test_a_loop_gives_weights_and_gradients_with_their_strides() -> None:
    found = outcome(gradient_replaced, build=Square)
    assert are_equal(found, outcome(gradient_replaced, build=Square, streams=False))


def test_a_gradient_of_other_strides_is_refused() -> None:
    loop = new_loop(Square)
    with stream(loop):
        loop.train(1)
        with pytest.raises(OpenwaferError, match=r"the strides \(32, 1\), .* keeps .* \(1, 32\)"):
            loop.parameters[0].grad = torch.ones(32, 32)


GAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "columns": lambda weight: torch.cat([weight, weight], 1)[:, :32],
    "one row": lambda weight: weight[:1].expand(32, 32),
}


@pytest.mark.parametrize("place", GAPS.values(), ids=GAPS)
def test_weights_with_gaps_or_that_overlap_are_refused(place: Callable[[Tensor], Tensor]) -> None:
    loop = new_loop(lambda: Square(place))
    message = r"'layers\.0\.weight' of shape \(32, 32\) has the strides .* help: .*contiguous"
    with stream(loop), pytest.raises(OpenwaferError, match=f"(?s){message}"):
        loop.train(1)


def test_masters_of_strided_weights_are_refused() -> None:
    loop = new_loop(lambda: Square().bfloat16())
    streamed = stream_weights(
        loop.model, loop.optimizer, device_memory="200KiB", keeps_masters=True, options=STREAMED
    )
    message = r"'layers\.0\.weight' of shape \(32, 32\) has the strides \(1, 32\)"
    with streamed, pytest.raises(OpenwaferError, match=message):
        loop.train(1)
