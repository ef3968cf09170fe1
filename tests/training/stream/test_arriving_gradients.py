"""Which records have all their gradients while a backward pass goes on."""

import pytest
import torch
from torch import nn

from openwafer.training.stream.execute.arriving_gradients import ArrivingGradients
from openwafer.training.stream.layers import PINNED, Partition

RECORDS = {PINNED: ("scale",), "layer": ("weight", "bias", "frozen")}
SPLIT = Partition((), RECORDS)


@pytest.fixture
def parameters() -> dict[str, nn.Parameter]:
    made = {name: nn.Parameter(torch.ones(2)) for names in RECORDS.values() for name in names}
    made["frozen"].requires_grad_(False)
    return made


def test_a_record_is_complete_with_the_last_of_its_gradients(
    parameters: dict[str, nn.Parameter],
) -> None:
    gradients = ArrivingGradients(SPLIT, parameters)
    assert [gradients.note("bias"), gradients.note("weight")] == [None, "layer"]


def test_a_record_does_not_wait_for_a_parameter_that_gets_none(
    parameters: dict[str, nn.Parameter],
) -> None:
    gradients = ArrivingGradients(SPLIT, parameters)
    gradients.expect(["weight"])
    assert gradients.note("weight") == "layer"


def test_the_pinned_record_is_never_complete_and_comes_last(
    parameters: dict[str, nn.Parameter],
) -> None:
    gradients = ArrivingGradients(SPLIT, parameters)
    assert gradients.note("scale") is None
    gradients.note("weight")
    assert gradients.begun == ["layer", PINNED]


def test_what_is_taken_is_off_the_parameters(parameters: dict[str, nn.Parameter]) -> None:
    gradients = ArrivingGradients(SPLIT, parameters)
    (parameters["weight"] * 3).sum().backward()
    gradients.note("weight")
    assert gradients.take("layer")["weight"].tolist() == [3, 3]
    assert (parameters["weight"].grad, gradients.begun) == (None, [])


def test_what_is_forgotten_is_off_the_parameters_too(parameters: dict[str, nn.Parameter]) -> None:
    gradients = ArrivingGradients(SPLIT, parameters)
    parameters["bias"].sum().backward()
    gradients.note("bias")
    gradients.forget()
    assert (parameters["bias"].grad, gradients.begun) == (None, [])
