"""How much each micro-batch's loss counts in its step."""

import torch

from openwafer.training.data import Batch
from openwafer.training.session.trainer import StepRoot
from openwafer.training.stream.device.device import CpuDevice


def batch_of(num_targets: int) -> Batch:
    """A sample of eight tokens, the last ones of which are padding."""
    ids = torch.arange(8)[None]
    return Batch(ids, ids.masked_fill(ids > num_targets, -100))


def test_the_loss_of_a_step_is_the_mean_over_its_targets() -> None:
    root = StepRoot([batch_of(6), batch_of(2)], 2, 1.0, None, CpuDevice())
    weighed = root([torch.tensor(1.0), torch.tensor(5.0)])
    assert [part.item() for part in weighed] == [0.75, 1.25]
    assert root.loss == 2.0
