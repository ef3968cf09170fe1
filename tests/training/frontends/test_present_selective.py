"""Weights of the present style that train in part."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.present import cstorch
from tests.training.frontends.present_scripts import PlainScript, PresentScript, adamw

FILTER = "layers.*.mlp.up.weight"
NAME = "layers.0.mlp.up.weight"


class Selective(PresentScript):
    """Streams, and trains only a part of its matrices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun = self.model.get_parameter(NAME).detach().clone()
        self.model.apply(cstorch.nn.SelectiveGrad(FILTER))

    @property
    def mask(self) -> Tensor:
        return self.model.get_buffer(f"{NAME}_requires_grad")


def test_weights_that_are_not_chosen_keep_their_bits_while_they_stream() -> None:
    found = Selective(adamw)
    found.train()
    weight, mask = found.model.get_parameter(NAME).detach(), found.mask
    assert 0 < int(mask.sum()) < mask.numel() / 4
    assert torch.equal(weight[~mask], found.begun[~mask])
    assert not torch.equal(weight[mask], found.begun[mask])
    moment = found.optimizer.state[found.model.get_parameter(NAME)]["exp_avg"]
    assert moment[~mask].eq(0).all()
    assert moment[mask].ne(0).any()


@pytest.mark.slow
def test_streamed_bits_are_those_of_a_resident_model() -> None:
    class Resident(Selective):
        memory = "1GiB"

        def train(self, first: int = 0, last: int = 4) -> "Resident":
            PlainScript.train(self, first, last)
            return self

    found, plain = Selective(adamw).train(), Resident(adamw).train()
    assert found.losses == plain.losses
    assert found.losses != PresentScript(adamw).train().losses


def test_outliers_are_measured_by_the_column() -> None:
    cstorch.backend("CPU")
    model = nn.Linear(2, 4, bias=False)
    nn.init.constant_(model.weight, 1.0)
    with torch.no_grad():
        model.weight[0, 0] = -4.0
    cstorch.compile(model, cstorch.backend())
    model.apply(cstorch.nn.SelectiveGrad(["weight"]))
    # Of the first column, magnitudes deviate by 1.5; of the second, by 0.
    expected = torch.tensor([[True, True], [False, True], [False, True], [False, True]])
    assert torch.equal(model.get_buffer("weight_requires_grad"), expected)


MISTAKES: dict[str, tuple[Any, Any, str]] = {
    "glob": ("head.*", "outlier", "no parameter of the Linear matches 'head"),
    "name": ("*", "largest", "knows no init_method 'largest'"),
    "mask": ("weight", lambda weight: weight > 0 if weight.ndim == 1 else weight, "torch.float32"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_choice_is_told(mistake: str) -> None:
    globs, method, words = MISTAKES[mistake]
    cstorch.backend("CPU")
    model = cstorch.compile(nn.Linear(2, 2), cstorch.backend())
    with pytest.raises(OpenwaferError, match=words):
        model.apply(cstorch.nn.SelectiveGrad(globs, method))
