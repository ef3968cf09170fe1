"""How the elements of a tensor lie among activations: rows are tokens, columns are features."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Self

import torch


@dataclass(frozen=True)
class Arrangement:
    """A view of some features of all tokens.

    Attributes:
        features: their numbers, in the order in which they lie.
        shape: of the view.
        strides: of the same view if these features were all that lie there; 1 where the size is.
    """

    features: tuple[int, ...]
    shape: torch.Size
    strides: tuple[int, ...]

    @classmethod
    def plain(cls, shape: torch.Size) -> Self:
        """A tensor (..., features) by itself."""
        strides = [1 if size == 1 else prod(shape[i + 1 :]) for i, size in enumerate(shape)]
        return cls(tuple(range(shape[-1])), shape, tuple(strides))

    @property
    def num_tokens(self) -> int:
        """Of the view."""
        return self.shape.numel() // len(self.features)

    def seen(self, plain: torch.Tensor) -> torch.Tensor:
        """The view of these features' values: (tokens, features)."""
        return plain.as_strided(self.shape, self.strides)

    def is_like(self, other: "Arrangement") -> bool:
        """Whether elements follow each other in the same order."""
        return (self.shape, self.strides) == (other.shape, other.strides)


def arranged(view: torch.Tensor, num_features: int) -> Arrangement | None:
    """How a view of activations lies; None where it leaves out tokens, or repeats something.

    Args:
        view: of a tensor (tokens, features) that is contiguous.
        num_features: of that one.
    """
    num_tokens = view.untyped_storage().nbytes() // (4 * num_features)
    lies = view.shape, view.stride(), view.storage_offset()
    return _arranged(*lies, num_features, num_tokens)


@lru_cache(maxsize=4096)
def _arranged(
    shape: torch.Size, strides: tuple[int, ...], offset: int, num_features: int, num_tokens: int
) -> Arrangement | None:
    dims = [dim for dim, size in enumerate(shape) if size > 1]
    dims.sort(key=lambda dim: strides[dim])
    of_tokens = [dim for dim in dims if strides[dim] and strides[dim] % num_features == 0]
    of_features = [dim for dim in dims if dim not in of_tokens]
    tokens = 1
    for dim in of_tokens:
        if strides[dim] != tokens * num_features:
            return None
        tokens *= shape[dim]
    features, packed = [offset], [1] * len(shape)
    for dim in reversed(of_features):
        features = [one + i * strides[dim] for one in features for i in range(shape[dim])]
    if tokens != num_tokens or len(set(features)) < len(features) or max(features) >= num_features:
        return None
    step = 1
    for dim in of_features:
        packed[dim], step = step, step * shape[dim]
    for dim in of_tokens:
        packed[dim] = strides[dim] // num_features * step
    return Arrangement(tuple(features), shape, tuple(packed))
