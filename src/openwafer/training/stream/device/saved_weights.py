# ruff: noqa: SLF001  (what autograd knows of its graph has no public names)
"""Tells how a tensor that autograd saved came from a weight, so that it need not be kept.

Such a tensor is a view of a weight, or of what one cast of a weight returned: views, a cast, views.
What the views before the cast did is repeated from their autograd nodes; what those behind it did
shows in the tensor's geometry. Where a step of the way is not known, the tensor counts as an
activation, which is always right and takes memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from openwafer.training.torch_private import neg_view

_CAST: Final = "ToCopyBackward0"
_MAX_VIEWS: Final = 16


class Geometry(NamedTuple):
    """How a tensor lies in its storage, whatever views led to it.

    Attributes:
        dtype, size, stride, offset: in elements of ``dtype``.
        is_conj, is_neg: whether it is read conjugated, or negated.
    """

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conj: bool
    is_neg: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Geometry":
        """The geometry of a tensor."""
        return cls(
            tensor.dtype,
            tuple(tensor.size()),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def view_of(self, storage: torch.Tensor) -> torch.Tensor:
        """The tensor of this geometry; ``storage`` has one dim and spans its whole storage."""
        seen = storage.view(self.dtype).as_strided(self.size, self.stride, self.offset)
        seen = seen.conj() if self.is_conj else seen
        return neg_view(seen) if self.is_neg else seen


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The storage below a tensor as one flat tensor of its dtype, without a copy."""
    flat = tensor.detach()
    flat = flat.conj() if flat.is_conj() else flat
    flat = neg_view(flat) if flat.is_neg() else flat
    num_elements = flat.untyped_storage().nbytes() // flat.element_size()
    return flat.as_strided((num_elements,), (1,), 0)


@dataclass(frozen=True, slots=True)
class Cast:
    """A copy of a weight in another dtype or memory format.

    Attributes:
        source: what was copied.
        result: what came of it, alone in its storage.
    """

    source: Geometry
    result: Geometry

    def repeated(self, storage: torch.Tensor) -> torch.Tensor:
        """The whole storage of the copy, made again from the storage of the weight."""
        flat = torch.empty(self.result_elements, dtype=self.result.dtype, device=storage.device)
        self.result.view_of(flat).copy_(self.source.view_of(storage))
        return flat

    @property
    def result_elements(self) -> int:
        """Elements in the copy's storage."""
        extents = zip(self.result.size, self.result.stride, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in extents)


class MadeCast(NamedTuple):
    """A cast and where it stands in the autograd graph.

    Attributes:
        leaf: what was cast is a view of it.
        cast: what was done.
        sequence_number: that autograd gave to the cast.
    """

    leaf: torch.Tensor
    cast: Cast
    sequence_number: int


def cast_of_leaf(tensor: torch.Tensor) -> MadeCast | None:
    """The cast of a leaf that ``tensor`` is a view of; ``None`` where it is none for certain."""
    result = tensor if tensor._base is None else tensor._base
    node = result.grad_fn
    # A copy that was written in place since it was made holds something else.
    if node is None or node.name() != _CAST or result._version or not result.numel():
        return None
    views = _views_before(node)
    if views is None:
        return None
    leaf = views.pop()[0].variable
    source = leaf.detach()
    for view, output in reversed(views):
        source = _VIEWS[view.name()](source, _View(view, output))
    if source.size() != result.size():
        return None
    return MadeCast(leaf, Cast(Geometry.of(source), Geometry.of(result)), node._sequence_nr())


def _views_before(node: Any) -> list[tuple[Any, int]] | None:
    """The nodes from a cast to its leaf, each with the output that the next one takes."""
    found: list[tuple[Any, int]] = []
    while len(found) <= _MAX_VIEWS and len(node.next_functions) == 1:
        node, output = node.next_functions[0]
        if node is None:
            return None
        found.append((node, output))
        if hasattr(node, "variable"):
            return found
        if node.name() not in _VIEWS:
            return None
    return None


class _View:
    """What a node says of the view it returned: its shape, and what it was called with."""

    def __init__(self, node: Any, output: int) -> None:
        self._node = node
        self.output = output

    @property
    def shape(self) -> torch.Size:
        shape: torch.Size = self._node._input_metadata[self.output].shape
        return shape

    def __getitem__(self, argument: str) -> int:
        return _signed(getattr(self._node, f"_saved_{argument}"))

    def all(self, argument: str) -> list[int]:
        return [_signed(number) for number in getattr(self._node, f"_saved_{argument}")]


def _signed(number: int) -> int:
    """Autograd shows negative numbers as those of 64 bits without a sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _same_order(source: torch.Tensor, to: _View) -> torch.Tensor:
    return source.view(to.shape)


def _slice(source: torch.Tensor, to: _View) -> torch.Tensor:
    sliced: torch.Tensor = torch.ops.aten.slice(
        source, to["dim"], to["start"], to["end"], to["step"]
    )
    return sliced


_VIEWS: Final[Mapping[str, Callable[[torch.Tensor, _View], torch.Tensor]]] = {
    "AliasBackward0": _same_order,
    "ReshapeAliasBackward0": _same_order,
    "SqueezeBackward0": _same_order,
    "SqueezeBackward1": _same_order,
    "SqueezeBackward2": _same_order,
    "UnsqueezeBackward0": _same_order,
    "ViewBackward0": _same_order,
    "ExpandBackward0": lambda source, to: source.expand(to.shape),
    "PermuteBackward0": lambda source, to: source.permute(to.all("dims")),
    "SelectBackward0": lambda source, to: source.select(to["dim"], to["index"]),
    "SliceBackward0": _slice,
    "SplitBackward0": lambda source, to: source.split(to["split_size"], to["dim"])[to.output],
    "SplitWithSizesBackward0": lambda source, to: source.split(to.all("split_sizes"), to["dim"])[
        to.output
    ],
    "TBackward0": lambda source, to: source.t(),
    "TransposeBackward0": lambda source, to: source.transpose(to["dim0"], to["dim1"]),
    "UnbindBackward0": lambda source, to: source.unbind(to["dim"])[to.output],
}
