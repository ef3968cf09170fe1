"""Weights that share memory with something else of a model, which the store would take apart."""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from openwafer.diagnostics import OpenwaferError, error

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
        own = (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        held = {**vars(module), **dict(chain(*own))}
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
