"""The sparse weights of a model that has packed linear modules, by name."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from openwafer.training.sparsity.few_tokens import FewTokens
from openwafer.training.sparsity.packed.room import PackedRoom
from openwafer.training.sparsity.packed_linear import PATTERN, PackedLinear


def packed_linears(model: nn.Module) -> dict[str, PackedLinear]:
    """The module of each sparse weight of a model, by the weight's name."""
    return {
        f"{path}.weight" if path else "weight": module
        for path, module in model.named_modules()
        if isinstance(module, PackedLinear)
    }


def rooms_of(model: nn.Module) -> dict[str, PackedRoom]:
    """The room of each sparse weight of a model, by the weight's name."""
    return {name: module.room for name, module in packed_linears(model).items()}


def pattern_name(name: str) -> str:
    """Name of the pattern that belongs to a sparse weight."""
    return f"{name.removesuffix('weight')}{PATTERN}"


def is_pattern(name: str, rooms: Mapping[str, PackedRoom]) -> bool:
    """Whether a parameter is the pattern of a sparse weight."""
    weight = f"{name.removesuffix(PATTERN)}weight"
    return name.endswith(PATTERN) and weight in rooms


@contextmanager
def multiplying_few_tokens(model: nn.Module) -> Iterator[list[FewTokens]]:
    """Context in which sparse weights whose products may skip zeros do so for a few tokens, too."""
    modules = [
        module
        for module in packed_linears(model).values()
        if module.multiplication.skipping.from_tokens is not None
    ]
    for module in modules:
        module.few_tokens = FewTokens(module.multiplication)
    try:
        yield [module.few_tokens for module in modules if module.few_tokens is not None]
    finally:
        for module in modules:
            module.few_tokens = None


class DenseWeights(Mapping[str, torch.Tensor]):
    """The weights of a model by the names that they have in its dense form.

    Args:
        weights: as the store has them, read when asked for.
        model: whose modules say which are sparse.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], model: nn.Module) -> None:
        self._weights = weights
        self._rooms = rooms_of(model)
        self._parameters = dict(model.named_parameters())
        self._names = [name for name in weights if not is_pattern(name, self._rooms)]

    def __getitem__(self, name: str) -> torch.Tensor:
        values = self._weights[name]
        room = self._rooms.get(name)
        if room is None:
            return values
        return room.dense(values, self._weights[pattern_name(name)])

    def hollow(self, name: str) -> torch.Tensor:
        """A tensor of the dtype and shape of a weight, without values."""
        parameter, room = self._parameters[name], self._rooms.get(name)
        return parameter if room is None else parameter.new_empty(room.shape, device="meta")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
