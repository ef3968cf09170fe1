"""Models that the store or the stream cannot train."""

import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.plan_record import Mode
from openwafer.training.stream.device.weights import WeightUses
from openwafer.training.stream.plan.search import StreamPlan


def check_is_dense(model: nn.Module) -> None:
    """Raise ``sparse-gradient`` and ``sparse-layout`` for torch's sparse gradients and weights."""
    for name, parameter in model.named_parameters():
        if parameter.layout is not torch.strided:
            layout = str(parameter.layout).removeprefix("torch.")
            raise error(
                "sparse-layout",
                f"{name!r} has torch's layout {layout}, and the parameter store lays out dense "
                "weights",
                help="keep it dense and multiply it by a mask, as torch.nn.utils.prune does; "
                "weights whose zeros take no room are those of a run with the key sparsity",
            )
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
            WeightUses().written(name)
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
