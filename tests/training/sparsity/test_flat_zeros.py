"""What is known of the zeros of a tensor: only where it is certain are they taken for flat."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.activation_linear import (
    ActivationLinear,
    inputs_of_linears,
    is_flat_at_zeros,
)

Made = Callable[[Tensor], Tensor]
MASK = torch.arange(32) % 3 > 0


def largest(x: Tensor) -> Tensor:
    """The four largest of each row, others zero."""
    values, places = x.topk(4, -1)
    return torch.zeros_like(x).scatter(-1, places, values)


FLAT: dict[str, Made] = {
    "relu": F.relu,
    "in place": lambda x: F.relu_(x + 1),
    "relu6": F.relu6,
    "squared": lambda x: F.relu(x).square(),
    "dropped": lambda x: F.dropout(F.relu(x), 0.5),
    "masked": lambda x: F.relu(x) * MASK,
    "scaled": lambda x: F.relu(x) / 3 * 2,
    "turned": lambda x: F.relu(x).transpose(0, 1).reshape(8, 4, 32).flatten(0, 1)[1:],
    "top of relu": lambda x: largest(F.relu(x)),
    "chosen": lambda x: torch.where(MASK, F.relu(x), 0.0),
    "product": lambda x: F.relu(x) * F.relu(-x + 1),
    "no gradient": lambda x: x.detach(),
}
NOT_FLAT: dict[str, Made] = {
    "leaf": lambda x: x,
    "gelu": F.gelu,
    "gated": lambda x: F.relu(x) * (x + 1),
    "dropout alone": lambda x: F.dropout(x, 0.9),
    "top alone": largest,
    "leaky": lambda x: F.leaky_relu(x, 0.0),
    "hardtanh": F.hardtanh,
    "threshold": lambda x: F.threshold(x, -1.0, 0.0),
    "sum": lambda x: F.relu(x) + 1,
    "difference": lambda x: F.relu(x) - F.relu(x + 1),
    "root of a sum": lambda x: (F.relu(x) - 1) ** 2,
    "divisor": lambda x: F.relu(x) / (x.abs() + 1),
}


def leaf() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(32, 32, requires_grad=True)


@pytest.mark.parametrize("made", FLAT.values(), ids=FLAT)
def test_these_zeros_are_flat(made: Made) -> None:
    assert is_flat_at_zeros(made(leaf()))


@pytest.mark.parametrize("made", NOT_FLAT.values(), ids=NOT_FLAT)
def test_these_may_not_be(made: Made) -> None:
    assert not is_flat_at_zeros(made(leaf()))


@pytest.mark.parametrize("made", FLAT.values(), ids=FLAT)
def test_gradients_at_flat_zeros_reach_nothing(made: Made) -> None:
    """Two gradients that differ at zeros alone give the leaf the same."""
    x = leaf()
    output = made(x)
    if not output.requires_grad:
        return
    gradient = torch.randn_like(output)
    [one] = torch.autograd.grad(output, x, gradient, retain_graph=True)
    [other] = torch.autograd.grad(output, x, gradient * (output != 0))
    assert torch.equal(one, other)


def test_nothing_is_known_without_gradients() -> None:
    with torch.no_grad():
        assert not is_flat_at_zeros(F.relu(leaf()))


def test_each_linear_of_a_forward_is_told_by_what_made_its_input() -> None:
    model = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    found = inputs_of_linears(model, lambda: model(leaf()))
    assert found == {"0": "another layer or a leaf", "2": "", "4": "GeluBackward"}


def test_a_module_refuses_inputs_whose_zeros_may_have_a_slope() -> None:
    module = ActivationLinear(nn.Linear(32, 4), "mlp.down")
    with pytest.raises(OpenwaferError, match=r"of 'mlp.down', which comes from GeluBackward"):
        module(F.gelu(leaf()))
    with torch.no_grad():
        assert module(F.gelu(leaf())).shape == (32, 4)
