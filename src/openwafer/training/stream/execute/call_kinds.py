"""Kinds of calls: all that the memory of a call depends on, as far as arguments and settings tell.

Two calls of one kind make tensors of the same sizes, unless what the model does depends on values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import nn

# Objects in objects in arguments; what lies deeper tells nothing.
MAX_DEPTH: Final = 6


class TensorForm(NamedTuple):
    """A tensor without its values; strides in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


Leaf: TypeAlias = TensorForm | bool | int | str | type | None


@dataclass(frozen=True)
class CallKind:
    """One kind of call of a model.

    Attributes:
        function: what is called.
        leaves: of the arguments, by path.
        is_graded: whether gradients are wanted.
        autocast: dtype of the autocast that is on, or ``None``.
        training: by module, whether it is in training mode.
        trained: by parameter, whether it requires a gradient.
    """

    function: str
    leaves: tuple[tuple[str, Leaf], ...]
    is_graded: bool
    autocast: torch.dtype | None
    training: tuple[bool, ...]
    trained: tuple[bool, ...]

    def fits_in(self, other: "CallKind") -> bool:
        """Whether a call of this kind takes no more than one of the other kind.

        Every tensor is there in the other, too, and is no larger there in any dim. Evaluation
        takes no more than training: it saves nothing, and drops nothing.
        """
        known = dict(other.leaves)
        return (
            self.function == other.function
            and self.is_graded <= other.is_graded
            and self.autocast == other.autocast
            and (self.training == other.training or not any(self.training))
            and all(_fits(leaf, known.get(path)) for path, leaf in self.leaves)
        )

    def rounded(self) -> "CallKind":
        """The kind with sizes and numbers rounded up, by a quarter at most.

        A cache is longer at every call; calls with one share few rounded kinds.
        """
        return replace(self, leaves=tuple((path, _rounded(leaf)) for path, leaf in self.leaves))

    def shapes(self) -> str:
        """The tensors among the arguments, for a message."""
        told = [f"{path} {leaf.shape}" for path, leaf in self.leaves if type(leaf) is TensorForm]
        return ", ".join(told) or "no tensors"


class Members(NamedTuple):
    """What a model is made of; to walk through it takes longer than a small layer."""

    modules: tuple[nn.Module, ...]
    parameters: tuple[nn.Parameter, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Members":
        """The members of a model as it is."""
        return cls(tuple(model.modules()), tuple(model.parameters()))


def call_kind(
    model: Members, function: str, args: object, kwargs: object, device: torch.device
) -> CallKind:
    """The kind of a call that is about to be made.

    Args:
        model: what is called, or what it is a part of.
        function: name for what is called.
        args, kwargs: the call's arguments.
        device: whose autocast counts.
    """
    is_cast = torch.is_autocast_enabled(device.type)
    return CallKind(
        function,
        (*_leaves(args, "argument", MAX_DEPTH), *_leaves(kwargs, "", MAX_DEPTH)),
        torch.is_grad_enabled(),
        torch.get_autocast_dtype(device.type) if is_cast else None,
        tuple([module.training for module in model.modules]),
        tuple([parameter.requires_grad for parameter in model.parameters]),
    )


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, torch.Tensor):
        yield path, TensorForm(tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    elif value is None or isinstance(value, bool | int | str):
        yield path, value
    elif depth == 0:
        yield path, type(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key), depth - 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path} {index}", depth - 1)
    else:
        yield path, type(value)
        # A batch may be an object of any class, with tensors in it.
        yield from _leaves(getattr(value, "__dict__", ()), path, depth - 1)


def _rounded(leaf: Leaf) -> Leaf:
    if type(leaf) is TensorForm:
        shape = tuple(map(_rounded_up, leaf.shape))
        return TensorForm(shape, (), leaf.dtype, leaf.requires_grad)
    return _rounded_up(leaf) if type(leaf) is int else leaf


def _rounded_up(number: int) -> int:
    """The next number of which only the three highest bits are set; a negative one itself."""
    unit = 1 << max(number.bit_length() - 3, 0)
    return -(-number // unit) * unit if number > 0 else number


def _fits(leaf: Leaf, known: Leaf) -> bool:
    if leaf is None:
        return True
    if type(leaf) is TensorForm and type(known) is TensorForm:
        return (
            leaf.dtype == known.dtype
            and leaf.requires_grad <= known.requires_grad
            and len(leaf.shape) == len(known.shape)
            and all(size <= most for size, most in zip(leaf.shape, known.shape, strict=True))
        )
    # Whole numbers, such as a step, come and go; their size says nothing of memory.
    is_number = type(leaf) is int and type(known) is int
    return is_number or (type(leaf) is type(known) and leaf == known)
