"""The loss on held-out documents."""

from itertools import islice

from openwafer.training.data import Batch, Split, TokenDataset
from openwafer.training.session.forward import forward_of
from openwafer.training.session.opened_run import OpenedRun


def held_out(run: OpenedRun) -> TokenDataset:
    """The validation split; raises ``no-such-split`` where it holds no documents."""
    return run.dataset.for_split(Split.VALIDATION, verify=False)


def evaluate(run: OpenedRun, dataset: TokenDataset, num_batches: int) -> float:
    """Mean loss over the targets of the first batches of a split.

    Micro-batches are as large as in training, so that they fit the device.
    """
    run.execution.flush()
    size = run.config.batch.size // run.config.batch.num_micro_batches
    total = 0.0
    num_targets = 0
    run.model.eval()
    try:
        for batch in islice(dataset.once(), num_batches):
            for start in range(0, len(batch.input_ids), size):
                rows = batch.rows(start, start + size)
                total += _loss(run, rows) * rows.num_targets
                num_targets += rows.num_targets
    finally:
        run.model.train()
    return total / num_targets


def _loss(run: OpenedRun, batch: Batch) -> float:
    device = run.execution.device.torch_device
    return run.execution.evaluate(forward_of(run.model, batch, device)).item()
