"""The loss is found in whatever forward returns, or its absence is told."""

from types import SimpleNamespace

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import loss_of
from openwafer.training.models.reference_gpt import GptOutput

LOSS = torch.tensor(2.5)


@pytest.mark.parametrize(
    "output",
    [LOSS, {"loss": LOSS}, SimpleNamespace(loss=LOSS), GptOutput(LOSS, torch.zeros(1))],
    ids=["scalar", "mapping", "object", "reference-gpt"],
)
def test_a_loss_is_found(output: object) -> None:
    assert loss_of(output) is LOSS


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ((LOSS,), "forward returned tuple, which holds no loss"),
        ({"logits": LOSS}, "the loss in the dict of forward is None"),
        (GptOutput(None, LOSS), "the loss in the GptOutput of forward is None"),
        (SimpleNamespace(loss=2.5), "the loss in the SimpleNamespace of forward is 2.5"),
        (torch.zeros(3), r"the loss has shape \(3,\) and type torch.float32"),
        (torch.tensor(1), r"the loss has shape \(\) and type torch.int64"),
    ],
)
def test_a_missing_loss_is_told(output: object, message: str) -> None:
    with pytest.raises(OpenwaferError, match=message):
        loss_of(output)


def test_another_scalar_is_found_by_its_name() -> None:
    assert loss_of({"recall": LOSS}, "recall") is LOSS
    with pytest.raises(OpenwaferError, match="forward returned Tensor, which holds no real"):
        loss_of(LOSS, "real")


def test_the_remedy_asks_for_labels() -> None:
    with pytest.raises(OpenwaferError, match=r"does the batch hold labels\?"):
        loss_of(None)
