"""Every row of the table of architectures can be trained: the oracle behind the streamed runs."""

from fnmatch import fnmatchcase

import pytest
import torch

from tests.training.architectures import ARCHITECTURES, Architecture

MAX_PARAMETERS = 200_000

every_architecture = pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.name)


@every_architecture
def test_the_loss_reaches_every_trainable_parameter_but_those_the_row_names(
    row: Architecture,
) -> None:
    model = row.build()
    loss = model(**row.batch()).loss
    loss.backward()
    assert torch.isfinite(loss)
    missed = {n for n, p in model.named_parameters() if p.requires_grad and p.grad is None}
    named = {n for n in missed if any(fnmatchcase(n, glob) for glob in row.without_gradient)}
    assert missed == named
