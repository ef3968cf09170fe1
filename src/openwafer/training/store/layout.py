"""Gives every array of a record its place, to the byte, and names slices of arrays.

A record is one streamed layer's storage. It has three parts, each a run of named, typed arrays:
the weights that are streamed to the device, the states the update rules need, and the gradients.
Arrays start at multiples of 64 bytes, parts at multiples of 4096, so that an array can be handed
to a vector kernel and a part to direct I/O without a copy.

A model may hold many experts in one weight, and a store each of them in a record of its own, as a
slice of the weight along its first dim. Only the store's records tell slices apart: every file that
others read has the whole array, whose bytes are those of its slices one after the other.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

import torch

from openwafer.diagnostics import error

ARRAY_ALIGNMENT = 64
PAGE_BYTES = 4096
# Arrays that an update reads side by side share cache sets when they start 128 MiB apart, and the
# pass slows down five times and more; an odd gap behind large arrays keeps them from it.
STAGGER_FROM_BYTES = 64 << 20
STAGGER_BYTES = 5 * PAGE_BYTES + ARRAY_ALIGNMENT


class Part(StrEnum):
    """One of the three parts of a record."""

    WEIGHTS = "weights"
    STATES = "states"
    GRADIENTS = "gradients"


# Parts that outlive the process: they have two slots on disk and go into commits and checkpoints.
KEPT_PARTS = (Part.WEIGHTS, Part.STATES)

PartKey = tuple[str, Part]
"""The record, and which part of it."""


def state_name(state: str, parameter: str) -> str:
    """Name of a parameter's state array in the store."""
    return f"{state}/{parameter}"


@dataclass(frozen=True)
class ArraySpec:
    """A named array: `shape` in elements of `dtype`. Scalars and empty arrays are allowed.

    `strides`, in elements, is None for C order; else every element has a place of its own and
    there are no gaps between them.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements alone, without padding."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def in_c_order(self) -> "ArraySpec":
        """The same values as files for others hold them."""
        return replace(self, strides=None)

    def empty(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor of this kind, uninitialised."""
        if self.strides is None:
            return torch.empty(self.shape, dtype=self.dtype, device=device)
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class ArrayPlace:
    """An array's place, `offset_bytes` from the start of its part."""

    spec: ArraySpec
    offset_bytes: int
    num_bytes: int

    @property
    def end_bytes(self) -> int:
        """Offset of the first byte after the array."""
        return self.offset_bytes + self.num_bytes

    def view_in(self, part_bytes: torch.Tensor) -> torch.Tensor:
        """The array in the bytes of its part, uint8 with one dim; of its own dtype and shape."""
        elements = part_bytes.view(self.spec.dtype)
        offset = elements.storage_offset() + self._offset
        return elements.as_strided(self.spec.shape, self._strides, offset)

    @cached_property
    def _offset(self) -> int:
        return self.offset_bytes // self.spec.dtype.itemsize

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        return self.spec.empty("meta").stride()


@dataclass(frozen=True)
class RecordLayout:
    """The places of all arrays of one record; every part is present, perhaps empty."""

    name: str
    parts: Mapping[Part, tuple[ArrayPlace, ...]]

    def part_bytes(self, part: Part) -> int:
        """Bytes of the part, a multiple of 4096; 0 when it holds no bytes."""
        places = self.parts[part]
        return round_up(places[-1].end_bytes, PAGE_BYTES) if places else 0

    def bytes_of_weights(self, names: Collection[str]) -> int:
        """Bytes of those of its weights that are named, as their gradients have."""
        weights = self.parts[Part.WEIGHTS]
        return sum(place.num_bytes for place in weights if place.spec.name in names)

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(map(self.part_bytes, Part))

    @cached_property
    def _places(self) -> Mapping[Part, Mapping[str, ArrayPlace]]:
        return {part: {one.spec.name: one for one in held} for part, held in self.parts.items()}

    @property
    def kept_parts(self) -> tuple[Part, ...]:
        """The parts with bytes that outlive the process."""
        return tuple(part for part in KEPT_PARTS if self.part_bytes(part))

    def place(self, array_name: str, part: Part) -> ArrayPlace:
        """Place of one array. Raises `store-unknown-array` with the names there are."""
        place = self._places[part].get(array_name)
        if place is not None:
            return place
        known = ", ".join(place.spec.name for place in self.parts[part]) or "none"
        raise error(
            "store-unknown-array",
            f"record {self.name!r} has no array {array_name!r} among its {part}",
            notes=(f"arrays of that part: {known}",),
            help="ask for one of those, or for another part",
        )


def strides_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """A tensor's strides as an :class:`ArraySpec` has them.

    Those of a tensor without memory, one element for all, are of C order.
    """
    strides = tensor.stride()
    if not any(strides):
        return None
    in_c_order = torch.empty(tensor.shape, device="meta").stride()
    return None if strides == in_c_order else strides


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor as its elements lie in memory, with one dim, without a copy."""
    return tensor.as_strided((tensor.numel(),), (1,))


def is_laid_out_like(tensor: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether the elements of two tensors of one shape lie in memory in the same order."""
    return tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous())


def laid_out_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape as another, and of its strides; a copy only where it must be."""
    if is_laid_out_like(tensor, like):
        return tensor
    made = torch.empty_strided(
        tensor.shape, like.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple


def lay_out(
    name: str,
    weights: Sequence[ArraySpec] = (),
    states: Sequence[ArraySpec] = (),
    gradients: Sequence[ArraySpec] = (),
) -> RecordLayout:
    """Place the arrays of each part one after the other, in the order given."""
    parts = {Part.WEIGHTS: weights, Part.STATES: states, Part.GRADIENTS: gradients}
    return RecordLayout(name, {part: place_arrays(specs) for part, specs in parts.items()})


def place_arrays(specs: Sequence[ArraySpec]) -> tuple[ArrayPlace, ...]:
    """Place arrays at 64-byte aligned offsets from 0 on, with a gap behind large ones."""
    places = []
    offset = 0
    for spec in specs:
        places.append(ArrayPlace(spec, offset, spec.num_bytes))
        offset = round_up(offset + spec.num_bytes, ARRAY_ALIGNMENT)
        if spec.num_bytes >= STAGGER_FROM_BYTES:
            offset += STAGGER_BYTES
    return tuple(places)


def gaps(layout: RecordLayout, part: Part) -> tuple[tuple[int, int], ...]:
    """Ranges (start, end) of a part that belong to no array."""
    edges = [0]
    for place in layout.parts[part]:
        edges += [place.offset_bytes, place.end_bytes]
    edges.append(layout.part_bytes(part))
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((start, end) for start, end in pairs if end > start)


def index_by_name(layouts: Iterable[RecordLayout]) -> dict[str, RecordLayout]:
    """Layouts by record name. Raises `store-duplicate-name` for a name given twice."""
    layouts = tuple(layouts)
    refuse_duplicates("record", [layout.name for layout in layouts])
    for part in Part:
        arrays = [place.spec.name for layout in layouts for place in layout.parts[part]]
        refuse_duplicates(f"array of the {part}", arrays)
    return {layout.name: layout for layout in layouts}


def refuse_duplicates(what: str, names: Sequence[str]) -> None:
    """Raise `store-duplicate-name` when a name occurs twice."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise error(
            "store-duplicate-name",
            f"{what} named more than once: {', '.join(repeated)}",
            help="give each a name of its own; store tied weights as one array",
        )


def dtype_name(dtype: torch.dtype) -> str:
    """The name without its module."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name. Raises ValueError where torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found


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
