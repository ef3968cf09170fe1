"""Which records have all their gradients while a backward pass goes on."""

import pytest
import torch
from torch import nn

from openwafer.training.stream.device.device import CpuDevice
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
    gradients = ArrivingGradients(SPLIT, parameters, CpuDevice())
    assert [gradients.note("bias"), gradients.note("weight")] == [None, "layer"]


def test_a_record_does_not_wait_for_a_parameter_that_gets_none(
    parameters: dict[str, nn.Parameter],
) -> None:
    gradients = ArrivingGradients(SPLIT, parameters, CpuDevice())
    gradients.expect(["weight"])
    assert gradients.note("weight") == "layer"


def test_the_pinned_record_is_never_complete_and_comes_last(
    parameters: dict[str, nn.Parameter],
) -> None:
    gradients = ArrivingGradients(SPLIT, parameters, CpuDevice())
    assert gradients.note("scale") is None
    gradients.note("weight")
    assert gradients.begun == ["layer", PINNED]


def test_what_is_taken_is_off_the_parameters(parameters: dict[str, nn.Parameter]) -> None:
    gradients = ArrivingGradients(SPLIT, parameters, CpuDevice())
    (parameters["weight"] * 3).sum().backward()
    gradients.note("weight")
    assert gradients.take("layer")["weight"].tolist() == [3, 3]
    assert (parameters["weight"].grad, gradients.begun) == (None, [])


def test_what_is_forgotten_is_off_the_parameters_too(parameters: dict[str, nn.Parameter]) -> None:
    gradients = ArrivingGradients(SPLIT, parameters, CpuDevice())
    parameters["bias"].sum().backward()
    gradients.note("bias")
    gradients.forget()
    assert (parameters["bias"].grad, gradients.begun) == (None, [])


def test_a_record_waits_for_every_micro_batch(parameters: dict[str, nn.Parameter]) -> None:
    gradients = ArrivingGradients(SPLIT, parameters, CpuDevice())
    gradients.begin(2)
    arrived = [gradients.note(name) for name in ("bias", "weight", "bias", "weight")]
    assert arrived == [None, None, None, "layer"]


def test_parts_of_micro_batches_are_added_in_their_order(
    parameters: dict[str, nn.Parameter],
) -> None:
    # 1e8 + 1 - 1e8 is 0 or 1 in fp32, by the order of the sum.
    gradients = ArrivingGradients(SPLIT, parameters, CpuDevice())
    gradients.begin(3)
    for micro_batch, value in ((1, 1.0), (0, 1e8), (2, -1e8)):
        gradients.watchers.micro_batch = micro_batch
        (parameters["scale"] * value).sum().backward()
        gradients.note("scale")
    assert gradients.take(PINNED)["scale"].tolist() == [0, 0]


def test_parts_that_were_taken_are_in_host_memory(parameters: dict[str, nn.Parameter]) -> None:
    device = CpuDevice()
    gradients = ArrivingGradients(SPLIT, parameters, device)
    with device.active(is_watched=True):
        (parameters["weight"] * 3).sum().backward()
        assert device.used_bytes > 0
        gradients.note("weight")
        [part] = gradients.take_parts("layer")
        assert device.used_bytes == 0
    assert part["weight"].tolist() == [3, 3]


def test_a_part_leaves_the_rest_of_its_storage_on_the_device(
    parameters: dict[str, nn.Parameter],
) -> None:
    device = CpuDevice()
    gradients = ArrivingGradients(SPLIT, parameters, device)
    with device.active(is_watched=True):
        whole = torch.arange(4.0)
        parameters["weight"].grad = whole[2:]
        gradients.note("weight")
        [part] = gradients.take_parts("layer")
        assert device.used_bytes == whole.nbytes
    whole.zero_()
    assert part["weight"].tolist() == [2, 3]


def test_one_micro_batch_of_a_step_of_several_keeps_to_its_room(
    parameters: dict[str, nn.Parameter],
) -> None:
    device = CpuDevice()
    gradients = ArrivingGradients(SPLIT, parameters, device)
    gradients.planned_micro_batches = 2
    gradients.begin(1)
    with device.active(is_watched=True):
        parameters["scale"].sum().backward()
        gradients.note("scale")
        # Others are used once, and leave when their record is complete.
        assert device.used_bytes == 0
        assert gradients.take(PINNED)["scale"].tolist() == [1, 1]
