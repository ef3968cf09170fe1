"""Which experts got no gradient in a pass, told weight by weight."""

import torch
from torch import nn

from openwafer.training.store.layout import slice_name
from openwafer.training.stream.execute.expert_pass import ExpertPass
from openwafer.training.stream.execute.passes import Phase
from openwafer.training.stream.forms.weight_form import ByExpert

NUM_EXPERTS = 4
WEIGHTS = ("first", "second")


def expert_pass() -> ExpertPass:
    forms = {name: ByExpert(name, nn.Parameter(torch.zeros(NUM_EXPERTS, 2, 2))) for name in WEIGHTS}
    return ExpertPass(forms, lambda record: None, lambda: Phase.BACKWARD, lambda: 0)


def push(experts: ExpertPass, weight: str, index: int) -> None:
    experts.push({slice_name(weight, index): torch.ones(2, 2)})


def slices(weight: str, *indices: int) -> list[str]:
    return [slice_name(weight, index) for index in indices]


def test_a_weight_without_any_gradient_has_no_zeros() -> None:
    assert expert_pass().take_unpushed(lambda record: True) == []


def test_zeros_are_those_of_the_layers_that_backward_has_passed() -> None:
    experts = expert_pass()
    push(experts, "first", 0)
    push(experts, "second", 1)
    passed = experts.take_unpushed(lambda record: record.startswith("second"))
    assert passed == slices("second", 0, 2, 3)


def test_zeros_of_a_weight_come_once_a_pass() -> None:
    experts = expert_pass()
    push(experts, "first", 2)
    assert experts.take_unpushed(lambda record: True) == slices("first", 0, 1, 3)
    push(experts, "first", 0)
    assert experts.take_unpushed(lambda record: True) == []
    experts.end_pass()
    push(experts, "first", 0)
    assert experts.take_unpushed(lambda record: True) == slices("first", 1, 2, 3)
