"""A linear module whose weight is two parameters: the kept values, and the packed pattern."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize
from transformers.pytorch_utils import Conv1D

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.choice import WeightKind, WrittenProducts, choose
from openwafer.training.sparsity.packed import PackedRoom
from openwafer.training.sparsity.pattern import Pattern
from openwafer.training.sparsity.products import (
    FewTokens,
    Multiplication,
    Products,
    masked_linear,
    skipping_linear,
)

PATTERN = "weight_pattern"
"""Name of the parameter beside ``weight``."""


class OtherProduct(Protocol):
    """Multiplies some inputs of a packed linear module in the module's place."""

    def takes(self, inputs: Tensor, values: Tensor) -> bool:
        """Whether these inputs, `[..., in_features]`, are multiplied here."""

    def multiply(
        self, inputs: Tensor, values: Tensor, packed: Tensor, bias: Tensor | None
    ) -> Tensor:
        """`[..., out_features]`."""


class PackedLinear(nn.Module):
    """A linear map of a sparse weight, in the place of a module with a dense one.

    To whoever stores, moves and updates parameters the values are a vector like any other, and the
    pattern is a parameter that is not trained.

    Args:
        how: the weight is multiplied, with the room for its pattern.
        bias: of the module that this one replaces.
        like: a tensor of the dtype and on the device of the values, which are not set.

    Attributes:
        weight: values `[capacity]`, in the order of the pattern's positions, then zeros.
        weight_pattern: `uint8 [num_bytes]`.
        bias: `[outputs]`, or ``None``.
        other_product: multiplies what it takes, as where the model writes texts.
    """

    def __init__(
        self,
        how: Multiplication,
        bias: nn.Parameter | None,
        *,
        like: Tensor,
    ) -> None:
        super().__init__()
        self.room = room = how.room
        self.multiplication = how
        self.weight: nn.Parameter = nn.Parameter(
            like.new_empty(room.capacity), requires_grad=like.requires_grad
        )
        packed = torch.empty(room.num_bytes, dtype=torch.uint8, device=like.device)
        self.weight_pattern: nn.Parameter = nn.Parameter(packed, requires_grad=False)
        self.bias = bias
        self.other_product: OtherProduct | None = None

    @property
    def in_features(self) -> int:
        """Features of an input."""
        return self.room.shape[0 if self.multiplication.is_turned else 1]

    @property
    def out_features(self) -> int:
        """Features of an output."""
        return self.multiplication.num_outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        values: Tensor = self.weight
        bias: Tensor | None = self.bias
        kind = inputs.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            inputs, values = inputs.to(dtype), values.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        if self.other_product is not None and self.other_product.takes(inputs, values):
            return self.other_product.multiply(inputs, values, self.weight_pattern, bias)
        weight = self.multiplication
        multiply = skipping_linear if weight.skips_zeros(inputs, values) else masked_linear
        return multiply(inputs, values, self.weight_pattern, bias, weight)

    @property
    def pattern(self) -> Pattern:
        """Which positions are kept."""
        return self.room.pattern(self.weight_pattern)

    @torch.no_grad()
    def take(self, weight: Tensor, mask: Tensor) -> None:
        """Become the kept part of a dense weight; ``mask`` is of the weight's shape."""
        pattern = Pattern.from_mask(mask)
        self.weight_pattern.copy_(self.room.packed(pattern))
        self.weight.copy_(self.room.padded(pattern.values_of(weight)))

    def dense_weight(self) -> Tensor:
        """The weight with zeros where nothing is kept."""
        return self.room.dense(self.weight.detach(), self.weight_pattern)

    def extra_repr(self) -> str:
        """As torch shows the module."""
        rows, columns = self.room.shape
        sparsity = 1 - self.room.capacity / max(rows * columns, 1)
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, sparsity={sparsity:.3g}"
        )


Mask = Callable[[str, Tensor], Tensor]
"""The mask of a weight, by its name and its values."""


def pack_linears(
    model: nn.Module,
    capacities: Mapping[str, int],
    mask: Mask | None,
    products: WrittenProducts = Products.AUTO,
) -> None:
    """Replace modules of a model by sparse ones, one weight after the other.

    Args:
        model: changed in place.
        capacities: most positions that are ever kept, by the names of weights, all of linear
            modules.
        mask: chooses the positions; ``None`` leaves the parameters without values.
        products: how they are multiplied.

    Raises:
        OpenwaferError: ``sparse-module`` for a weight of another kind of module, ``sparse-tied``,
            ``sparse-products`` where products are given by name and do not fit the weights.
    """
    _refuse_tied(model, capacities)
    kinds = {name: _kind(model, name, capacity) for name, capacity in capacities.items()}
    for name, skipping in choose(products, kinds).items():
        path = name.rpartition(".")[0]
        module = model.get_submodule(path)
        weight, bias = module.get_parameter("weight"), module._parameters["bias"]  # noqa: SLF001
        made = PackedLinear(Multiplication(*kinds[name], skipping), bias, like=weight)
        if mask is not None:
            made.take(weight.detach(), mask(name, weight.detach()))
        made.train(module.training)
        parent, _, child = path.rpartition(".")
        setattr(model.get_submodule(parent), child, made)


def _kind(model: nn.Module, name: str, capacity: int) -> WeightKind:
    """Of the weight of a linear module, with room for so many positions."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    if attribute != "weight" or not is_plain(module):
        raise _no_linear(name, module)
    rows, columns = module.get_parameter("weight").shape
    room = PackedRoom.smallest((int(rows), int(columns)), capacity)
    return WeightKind(room, isinstance(module, Conv1D))


def is_plain(module: nn.Module) -> bool:
    """Whether a module does with its weight what a linear map does, and nobody else uses it."""
    forward = type(module).forward
    is_watched = vars(module)["_forward_hooks"] or vars(module)["_forward_pre_hooks"]
    return (
        forward in (nn.Linear.forward, Conv1D.forward)
        and "forward" not in vars(module)
        # Of attention, which multiplies by the weight itself.
        and not isinstance(module, NonDynamicallyQuantizableLinear)
        and not parametrize.is_parametrized(module)
        and not is_watched
    )


def _no_linear(name: str, module: nn.Module) -> OpenwaferError:
    return error(
        "sparse-module",
        f"{name!r} belongs to a {type(module).__name__}, and sparse are the weights of modules "
        "that do what nn.Linear or the transformers library's Conv1D does, without hooks",
        help="leave it dense: name in sparsity.param_filter the weights that shall be sparse, "
        "without this one",
    )


def _refuse_tied(model: nn.Module, chosen: Mapping[str, int]) -> None:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        if len(tied) > 1 and not chosen.keys().isdisjoint(tied):
            raise error(
                "sparse-tied",
                f"the weight {tied[0]!r} is used in {len(tied)} places: {', '.join(tied)}",
                help="leave it dense, or let the model not tie its weights",
            )


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
    before = [module.other_product for module in modules]
    products = [FewTokens(module.multiplication) for module in modules]
    for module, product in zip(modules, products, strict=True):
        module.other_product = product
    try:
        yield products
    finally:
        for module, other in zip(modules, before, strict=True):
            module.other_product = other


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
