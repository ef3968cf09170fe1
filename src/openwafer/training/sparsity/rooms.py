"""The sparse weights of a model that has packed linear modules, by name."""

from collections.abc import Mapping

from torch import nn

from openwafer.training.sparsity.packed.room import PackedRoom
from openwafer.training.sparsity.packed_linear import PATTERN, PackedLinear


def rooms_of(model: nn.Module) -> dict[str, PackedRoom]:
    """The room of each sparse weight of a model, by the weight's name."""
    return {
        f"{path}.weight" if path else "weight": module.room
        for path, module in model.named_modules()
        if isinstance(module, PackedLinear)
    }


def pattern_name(name: str) -> str:
    """Name of the pattern that belongs to a sparse weight."""
    return f"{name.removesuffix('weight')}{PATTERN}"


def is_pattern(name: str, rooms: Mapping[str, PackedRoom]) -> bool:
    """Whether a parameter is the pattern of a sparse weight."""
    weight = f"{name.removesuffix(PATTERN)}weight"
    return name.endswith(PATTERN) and weight in rooms
