"""Models that the store or the stream cannot train, alone or on several systems."""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from openwafer.diagnostics import OpenwaferError, error
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


def shared_state(changed: Sequence[str], where: str) -> OpenwaferError:
    """The error of a model whose forwards change attributes of these names.

    Args:
        changed: with the path of their module in front.
        where: says what of that several systems would not see.
    """
    name = changed[0].replace("_buffers.", "")
    more = f" and {len(changed) - 1} more" * (len(changed) > 1)
    return error(
        "systems-share-state",
        f"the model's forward changes {name!r}{more}, which another forward may read, and on "
        f"several systems {where}",
        help="make it in the constructor, return it from forward, or let no code of the forward "
        "read it; for BatchNorm's statistics, take LayerNorm or GroupNorm; or train on one system",
    )


def refuse_systems(plan: StreamPlan) -> None:
    """Refuse a plan whose passes the systems of a run may not walk alike.

    Raises:
        OpenwaferError: ``systems-share-state``, ``systems-nested``.
    """
    if plan.changed:
        raise shared_state(plan.changed, "the next one may be elsewhere")
    modules = [
        name
        for name, layers in plan.split.inner.items()
        if any(layer.slice_of is None for layer in layers)
    ]
    if modules:
        inner = modules[0]
        raise error(
            "systems-nested",
            f"{inner!r} has layers inside, which every micro-batch may use or not, and all systems "
            "fetch the same layers",
            help=f"name it in streaming.layers as one layer: streaming.layers: [{inner}]",
        )


# First byte, byte behind the last, name, whether it is a weight.
_Extent = tuple[int, int, str, bool]


def check_own_memory(model: nn.Module) -> None:
    """Refuse a model that finds a weight's values elsewhere than in the weight.

    Raises:
        OpenwaferError: ``weight-memory-shared``.
    """
    last: dict[bool, _Extent] = {}
    for extent in sorted(_extents(model)):
        for other in last.values():
            if extent[0] < other[1] and (extent[3] or other[3]):
                raise _shared(extent[2], other[2])
        kept = last.get(extent[3])
        last[extent[3]] = extent if kept is None or kept[1] < extent[1] else kept


def _extents(model: nn.Module) -> Iterator[_Extent]:
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for path, module in model.named_modules():
        own = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        held = {**vars(module), **dict(own)}
        made = _made_before_use(module)
        for name, tensor in held.items():
            is_tensor = type(tensor) in (torch.Tensor, nn.Parameter)
            if is_tensor and name not in made and _has_memory(tensor):
                found.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
    for name, tensor in found.values():
        extents = zip(tensor.size(), tensor.stride(), strict=True)
        num_elements = 1 + sum((size - 1) * stride for size, stride in extents)
        begin = tensor.data_ptr()
        is_weight = isinstance(tensor, nn.Parameter)
        yield begin, begin + num_elements * tensor.element_size(), name, is_weight


def _made_before_use(module: nn.Module) -> set[str]:
    """Attributes that a hook of torch replaces before each forward."""
    hooks = module._forward_pre_hooks.values()  # noqa: SLF001 - no public name
    return {hook.name for hook in hooks if isinstance(hook, SpectralNorm)}


def _has_memory(tensor: torch.Tensor) -> bool:
    is_there = tensor.layout is torch.strided and tensor.device.type != "meta"
    return is_there and tensor.numel() > 0 and tensor.data_ptr() != 0


def _shared(one: str, other: str) -> OpenwaferError:
    return error(
        "weight-memory-shared",
        f"{one!r} and {other!r} share memory, and a weight that is streamed has memory of its own",
        help="tie weights by one parameter in both places; give a buffer a copy, with .clone(), or "
        "compute it in the forward",
    )
