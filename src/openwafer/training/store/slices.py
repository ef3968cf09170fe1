"""Cuts an array along its first dim into slices with names, and joins them again.

A model may hold many experts in one weight, and a store each of them in a record of its own. Only
the store's records tell them apart: every file that others read has the whole array, whose bytes
are those of its slices one after the other.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from openwafer.training.store.layout import ArraySpec

# No name of torch's has two dots in a row: modules and parameters have names of their own, none of
# them empty, with a dot between them.
_SLICE = re.compile(r"(.+)\.\.(\d+)")


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: the name of the whole array, and where the slice is in it."""

    whole: str
    index: int


def slice_name(whole: str, index: int) -> str:
    """Name of a slice of an array."""
    return f"{whole}..{index}"


@lru_cache(maxsize=1 << 16)
def slice_of(name: str) -> Slice | None:
    """What the name of an array says, if it is a slice's."""
    found = _SLICE.fullmatch(name)
    return None if found is None else Slice(found[1], int(found[2]))


def whole_name(name: str) -> str:
    """Name of the array that an array is a slice of, or its own."""
    found = slice_of(name)
    return name if found is None else found.whole


def offset_in_whole(spec: ArraySpec) -> int:
    """Where the bytes of an array begin in those of its whole."""
    found = slice_of(spec.name)
    return 0 if found is None or not spec.shape else found.index * spec.num_bytes


def slice_into(whole: torch.Tensor, name: str, like: torch.Tensor) -> torch.Tensor:
    """The place in a whole array of the array of that name, which is of the shape of ``like``."""
    found = slice_of(name)
    if found is None or not like.ndim:
        return whole
    flat = whole.view(-1)[found.index * like.numel() : (found.index + 1) * like.numel()]
    return flat.view(like.shape)


def array_named(arrays: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The array of a name, which may be that of a slice of one of ``arrays``."""
    found = slice_of(name)
    return arrays[name] if found is None else arrays[found.whole][found.index]


def wholes(
    arrays: Iterable[tuple[str, torch.Tensor]], num_slices: Mapping[str, int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Arrays with their names, and in the place of slices their whole, once all have come.

    Args:
        arrays: the slices of an array follow each other, each valid until the next is asked for.
        num_slices: of each array that comes in slices.
    """
    whole = torch.empty(0)
    for name, array in arrays:
        found = slice_of(name)
        if found is None:
            yield name, array
            continue
        if not found.index:
            whole = array.new_empty((num_slices[found.whole], *array.shape))
        whole[found.index].copy_(array)
        if found.index + 1 == len(whole):
            yield found.whole, whole


def whole_specs(specs: Iterable[ArraySpec]) -> dict[str, ArraySpec]:
    """The arrays by name, with each run of slices as the one array that they make up.

    Slices of two dims and more are stacked. Those of one dim are bits that were packed into words,
    and follow each other. Those of none are one number, the same for all.
    """
    found: dict[str, ArraySpec] = {}
    num_slices: dict[str, int] = {}
    for spec in specs:
        name = whole_name(spec.name)
        found.setdefault(name, spec)
        num_slices[name] = num_slices.get(name, 0) + 1
    return {
        name: spec if spec.name == name else _whole(name, spec, num_slices[name])
        for name, spec in found.items()
    }


def _whole(name: str, spec: ArraySpec, num_slices: int) -> ArraySpec:
    match spec.shape:
        case ():
            shape: tuple[int, ...] = ()
        case (length,):
            shape = (num_slices * length,)
        case _:
            shape = (num_slices, *spec.shape)
    return replace(spec, name=name, shape=shape)
