"""The loss on held-out documents."""

from itertools import islice

from openwafer.diagnostics import error
from openwafer.training.data import Split, TokenDataset
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import forward_of
from openwafer.training.session.opened_model import OpenedModel


def held_out(dataset: TokenDataset) -> TokenDataset:
    """The validation split; raises ``no-such-split`` where it holds no documents."""
    return dataset.for_split(Split.VALIDATION, verify=False)


def require_held_out(config: RunConfig) -> None:
    """Raise ``no-such-split`` where a run would evaluate and keeps no documents for it."""
    if config.evaluate is not None and config.data.validation_share == 0:
        raise error(
            "no-such-split",
            "data.validation_share is 0, and evaluate needs held-out documents",
            help="raise data.validation_share, or leave evaluate out",
        )


def evaluate(opened: OpenedModel, dataset: TokenDataset, num_batches: int) -> float:
    """Mean loss over the targets of the first batches of a split.

    A batch passes the layers in the micro-batches of training, so that it fits the device.
    """
    opened.execution.flush()
    size = opened.config.batch.samples_of_piece
    device = opened.execution.device.torch_device
    total = 0.0
    num_targets = 0
    opened.model.eval()
    try:
        for batch in islice(dataset.once(), num_batches):
            starts = range(0, len(batch.input_ids), size)
            pieces = [batch.rows(start, start + size) for start in starts]
            losses = opened.execution.evaluate(
                [forward_of(opened.model, piece, device) for piece in pieces]
            )
            for piece, loss in zip(pieces, losses, strict=True):
                total += loss.item() * piece.num_targets
                num_targets += piece.num_targets
    finally:
        opened.model.train()
    return total / num_targets
