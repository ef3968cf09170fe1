"""A pass that is abandoned leaves nothing on the device, whatever was done to the weights there."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.execute.executor import Executor
from tests.training.stream.both_loops import STREAMED, Run, StreamedRun, plan

WIDTH = 32
RUN = Run(
    build=lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))),
    optimize=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    draw=lambda generator: torch.randn(4, WIDTH, generator=generator),
    loss_of=lambda model, x_BF: model(x_BF).square().mean(),
    num_steps=1,
)


@pytest.fixture
def executor() -> Iterator[Executor]:
    """Of a pass that has all layers on the device."""
    streamed = StreamedRun(RUN, plan(RUN, replace(STREAMED, min_layer_bytes=1)))
    assert isinstance(streamed.execution, StreamedExecution)
    executor = streamed.execution.executor
    executor.begin_pass()
    for record in executor.split.records:
        executor.ensure(record)
    yield executor
    streamed.close()


def test_weights_that_were_written_to_leave_the_device_all_of_them(executor: Executor) -> None:
    for bias in map(executor.weights.parameters.__getitem__, ("0.bias", "1.bias", "2.bias")):
        bias.detach().zero_()
    with pytest.raises(OpenwaferError, match=r"writes to the weight '\d\.bias'"):
        executor.abandon_pass()
    assert not any(map(executor.weights.holds, executor.split.records))


def test_gradients_are_forgotten_though_a_weight_was_written_to(executor: Executor) -> None:
    executor.gradients.note("1.bias")
    executor.weights.parameters["0.bias"].detach().zero_()
    with pytest.raises(OpenwaferError, match=r"writes to the weight '0\.bias'"):
        executor.abandon_pass()
    assert not executor.gradients.begun
