"""Models that the store or the stream cannot train."""

from torch import nn

from openwafer.diagnostics import error
from openwafer.training.plan_record import Mode
from openwafer.training.stream.device.weights import refuse_write
from openwafer.training.stream.plan.search import StreamPlan


def check_gradients_are_dense(model: nn.Module) -> None:
    """Raise ``sparse-gradient`` for embeddings that make sparse gradients."""
    for path, module in model.named_modules():
        is_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if is_embedding and module.sparse and module.weight.requires_grad:
            raise error(
                "sparse-gradient",
                f"{path or 'the model'} has sparse=True, and the parameter store keeps gradients "
                "whole",
                help="build it with sparse=False; an optimizer then moves the rows that got no "
                "gradient, too, if it has a momentum or a weight decay",
            )


def refuse_uses(model: nn.Module, plan: StreamPlan) -> None:
    """Refuse a plan that streams a model whose forward does with weights what cannot stream.

    Raises:
        OpenwaferError: ``weights-written``, ``weight-by-offset``.
    """
    if plan.mode is Mode.STREAMED:
        _check_max_norms(model)
        for name in plan.dry.written:
            refuse_write(name)
        for name in plan.dry.offset:
            raise error(
                "weight-by-offset",
                f"the model's forward reads {name!r} by as_strided with a storage_offset, and "
                "weights that are streamed share their storage",
                help="leave storage_offset out, which then is the tensor's own, and take a part of "
                "the weight first: weight[2:].as_strided(size, stride)",
            )


def _check_max_norms(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise error(
                "weights-written",
                f"{path or 'the model'} scales its weights to max_norm={module.max_norm} in every "
                "forward, and weights that are streamed are only written by the optimizer",
                help="scale what the embedding returns instead, or let the model be resident",
            )
