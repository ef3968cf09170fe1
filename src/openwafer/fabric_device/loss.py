"""Cross-entropy for autograd, of logits that are on the wafer."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.fabric_device.linear import Wafers
from openwafer.fabric_device.on_wafer import OnWafer, rested
from openwafer.fabric_device.wafer import Wafer, asked_by, num_tokens


def cross_entropy(wafers: Wafers, logits: Tensor, labels: Tensor, **options: Any) -> Tensor | None:
    """What `F.cross_entropy` gives of logits (tokens, classes); the host adds up tokens' losses.

    None where no kernel has it, and torch reads the logits: of other shapes, of some tokens only,
    with weights or smoothing, or a loss of each token; and where a loop's own has no room.

    Raises:
        OpenwaferError: a label is none of the classes, or a planned step has no room.
    """
    tokens = num_tokens(logits.shape)
    if tokens in wafers.without_loss:
        return None
    ignored, reduction = options.pop("ignore_index"), options.pop("reduction")
    has_labels = labels.dtype == torch.int64 and labels.shape == logits.shape[:1]
    is_there = isinstance(logits, OnWafer) and logits.arrangement is not None
    is_there = is_there and logits.ndim == 2 and logits.shape[1] >= wafers.rows
    # Weights, smoothing and what torch has deprecated.
    if any(map(_is_set, options.values())) or not (
        has_labels and is_there and reduction in ("mean", "sum")
    ):
        return None
    counts = labels != ignored
    wrong = counts & ((labels < 0) | (labels >= logits.shape[1]))
    if wrong.any():
        place = int(wrong.nonzero()[0])
        raise error(
            "fabric-label",
            f"label {int(labels[place])} of token {place}; there are {logits.shape[1]} classes",
            help=f"give 0 to {logits.shape[1] - 1}, or {ignored} for a token that is ignored",
        )
    known = torch.where(counts, labels, -1)
    divisor = int(counts.sum()) if reduction == "mean" else 1
    try:
        result: Tensor = _CrossEntropy.apply(wafers, logits, known, divisor)  # type: ignore[no-untyped-call]
    except OpenwaferError as cause:
        wafers.leave_loss(tokens, cause)
        return None
    return result


def _is_set(option: Any) -> bool:
    return isinstance(option, Tensor) or bool(option)


class _CrossEntropy(torch.autograd.Function):
    """The node of a loss in autograd's graph; gradients stay on the wafer until the backward."""

    @staticmethod
    def forward(ctx: Any, wafers: Wafers, logits: OnWafer, labels: Tensor, divisor: int) -> Tensor:
        wafer: Wafer = logits.rest.wafer
        of_tokens = labels.numpy().astype(np.int32)
        with asked_by("the loss"):
            wafers.classify(wafer, logits.shape[1])
            given = rested(logits, wafer)
            losses, gradients = wafer.resident.cross_entropy(
                given.activation, of_tokens, 1 / max(1, divisor)
            )
        ctx.save_for_backward(OnWafer.of(wafer.made(gradients, has_zeros=True), logits.shape))
        wafer.account.copies_on += 1
        wafer.account.copies_off["cross_entropy"] += 1
        total = losses.sum(dtype=np.float64)
        return torch.tensor(total / divisor if divisor else np.nan, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        [made] = ctx.saved_tensors
        rest, factor = made.rest, float(gradient)
        if factor != 1:
            scaled = rest.wafer.resident.scale(rest.activation, factor)
            rest = rest.wafer.made(scaled, has_zeros=True)
        return None, OnWafer.of(rest, made.shape), None, None
