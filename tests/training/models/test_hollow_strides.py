"""Models without weights have the strides of their weights, by which arrays are laid out."""

import torch
from torch import nn

from openwafer.training.models.hollow import build_hollow, take_bf16_form


def transposed() -> nn.Module:
    linear = nn.Linear(3, 5)
    linear.weight = nn.Parameter(torch.randn(3, 5).t())
    return linear


def test_a_model_built_without_weights_has_their_strides() -> None:
    model = build_hollow(transposed)
    assert model is not None
    assert [p.stride() for p in model.parameters()] == [(1, 5), (0,)]


def test_the_bf16_form_has_the_strides_of_the_weights() -> None:
    model = transposed()
    take_bf16_form(model)
    assert model.get_parameter("weight").stride() == (1, 5)
