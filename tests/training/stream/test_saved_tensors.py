"""Tensors that are written in place behind autograd, which has saved them."""

from contextlib import closing, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from tests.training.stream.both_loops import Run, StreamedRun, plan
from tests.training.stream.foreign_loops import SIZE, Loop, are_equal, new_loop, outcome, stream
from tests.training.stream.test_micro_batch_state import options


class Squashing(nn.Sequential):
    """A layer whose backward wants what the layer returns."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(SIZE, SIZE), nn.Sigmoid())


class WritesOutputs(nn.Module):
    """Writes to what layers return, as often as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Squashing(), Squashing()])
        self.num_writes = 0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            for _ in range(self.num_writes):
                x += 1.0
        return x


class WritesBeside(WritesOutputs):
    """The same with what is no layer's."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[1](self.layers[0](x)).exp()
        for _ in range(self.num_writes):
            x += 1.0
        return x


MESSAGE = r"\(4, 32\) torch\.float32 that (layer 'layers\.1'|the model's forward) saved .* written"


@pytest.mark.parametrize("kind", [WritesOutputs, WritesBeside])
@pytest.mark.parametrize("streams", [False, True])
def test_a_late_write_that_plain_torch_refuses_is_refused(
    kind: type[WritesOutputs], streams: bool
) -> None:
    loop = new_loop(kind)
    with stream(loop, policy=Activations.KEEP) if streams else nullcontext():
        loop.train(1)
        loop.model.__dict__["num_writes"] = 1
        loss = loop.loss(1)
        plain = "has been modified by an inplace operation"
        kind_of_error = OpenwaferError if streams else RuntimeError
        with pytest.raises(kind_of_error, match=MESSAGE if streams else plain):
            loss.backward()


@pytest.mark.parametrize("policy", Activations)
def test_hooks_that_would_see_nothing_are_refused(policy: Activations) -> None:
    loop = new_loop(WritesOutputs)
    with stream(loop, policy=policy):
        loop.train(1)
        message = r"inside saved_tensors_hooks of .*, and what it saves"
        with (
            saved_tensors_hooks(Tensor.bfloat16, Tensor.float),
            pytest.raises(OpenwaferError, match=message),
        ):
            loop.loss(1)


@pytest.mark.parametrize("policy", Activations)
def test_hooks_of_torch_change_nothing(policy: Activations) -> None:
    def inside_hooks(loop: Loop) -> Tensor:
        with save_on_cpu():
            loss = loop.loss(1)
        loss.backward()
        loop.step()
        return loss.detach()

    found = outcome(inside_hooks, policy=policy)
    assert are_equal(found, outcome(inside_hooks, streams=False))


def seeded() -> nn.Module:
    torch.manual_seed(0)
    return WritesOutputs()


def test_a_late_write_in_a_rotation_is_refused() -> None:
    run = Run(
        seeded,
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        lambda generator: torch.randn(4, SIZE, generator=generator),
        lambda model, x: model(x).square().mean(),
        num_steps=2,
        num_micro_batches=2,
    )
    with closing(StreamedRun(run, plan(run, options()))) as streamed:
        streamed.step(0)
        streamed.model.__dict__["num_writes"] = 1
        with pytest.raises(OpenwaferError, match=MESSAGE):
            streamed.step(1)
