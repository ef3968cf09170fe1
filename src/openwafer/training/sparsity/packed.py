"""Patterns as bytes: the forms, the loops that pack and unpack, and room for a changing pattern.

The loops that unpack fill `row_starts` and `columns`, which has a place more than there are kept
positions: they write before they know whether a position is kept, since a branch that follows
random bits costs ten times as much. They return -1, or the row whose bytes no pattern can have.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from math import comb
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.pattern import (
    NARROW_COLUMNS,
    Columns,
    Pattern,
    column_dtype,
    compiled,
)

FORMAT: Final = "openwafer-sparse-pattern"
VERSION: Final = 1

OFFSET_COLUMNS: Final = 255
"""Columns of a block of the offsets form: the count of a full one still fits a byte."""
MAX_GROUP: Final = 16
"""Longest group of an N:M form; the places of its kept positions have one code of 16 bits."""


class Kind(StrEnum):
    """How the kept positions are written down."""

    BITMASK = "bitmask"
    OFFSETS = "offsets"
    CSR = "csr"
    GROUPED = "grouped"


@dataclass(frozen=True)
class Form:
    """A form of packed patterns; `kept` positions of each `group` columns for the grouped kind.

    Its text (`bitmask`, `offsets`, `csr`, `2:4`) is what stands in a manifest.
    """

    kind: Kind
    kept: int = 0
    group: int = 0

    def __post_init__(self) -> None:
        is_grouped = self.kind is Kind.GROUPED
        fits = 0 < self.kept < self.group <= MAX_GROUP if is_grouped else not self.kept | self.group
        if not fits:
            raise error(
                "sparse-form",
                f"no form of patterns keeps {self.kept} of {self.group} columns as {self.kind}",
                help=f"N:M keeps 0 < N < M <= {MAX_GROUP}; the other forms take no numbers",
            )

    def __str__(self) -> str:
        return f"{self.kept}:{self.group}" if self.kind is Kind.GROUPED else str(self.kind)


BITMASK: Final = Form(Kind.BITMASK)
OFFSETS: Final = Form(Kind.OFFSETS)
CSR: Final = Form(Kind.CSR)


def form_named(name: str) -> Form:
    """Form of that text: `bitmask`, `offsets`, `csr`, or N:M such as `2:4`."""
    plain = {str(form): form for form in (BITMASK, OFFSETS, CSR)}
    if name in plain:
        return plain[name]
    if numbers := re.fullmatch(r"(\d{1,2}):(\d{1,2})", name, re.ASCII):
        return Form(Kind.GROUPED, int(numbers[1]), int(numbers[2]))
    raise error(
        "sparse-form",
        f"'{name}' is no form of patterns",
        help=f"known are {', '.join(plain)}, and N:M such as 2:4",
    )


def num_bytes(form: Form, shape: tuple[int, int], num_kept: int) -> int:
    """Bytes that a pattern of this shape (rows, columns) with so many kept positions takes."""
    rows, columns = shape
    match form.kind:
        case Kind.BITMASK:
            return -(-rows * columns // 8)
        case Kind.OFFSETS:
            return rows * num_blocks(columns) + num_kept
        case Kind.CSR:
            return rows * count_bytes(columns) + num_kept * column_dtype(columns).itemsize
        case Kind.GROUPED:
            _check_groups(form, columns)
            return -(-rows * (columns // form.group) * code_bits(form) // 8)


def _check_groups(form: Form, columns: int) -> None:
    if columns % form.group:
        raise error(
            "sparse-form-misfit",
            f"{columns} columns are no whole number of groups of {form.group}",
            help="pack it as bitmask, offsets or csr",
        )


def smallest_form(shape: tuple[int, int], num_kept: int) -> Form:
    """The form without rules for the pattern that takes the fewest bytes.

    N:M is left out: whether a pattern keeps N of each M is not told by its numbers.
    """
    return min((BITMASK, OFFSETS, CSR), key=lambda form: num_bytes(form, shape, num_kept))


def num_blocks(columns: int) -> int:
    """Blocks of a row in the offsets form."""
    return -(-columns // OFFSET_COLUMNS)


def count_bytes(columns: int) -> int:
    """Bytes of a row's count in the CSR form; a full row has as many as there are columns."""
    return 2 if columns < NARROW_COLUMNS else 4


def code_bits(form: Form) -> int:
    """Bits of one group's code in an N:M form: enough to number the choices of N among M."""
    return (comb(form.group, form.kept) - 1).bit_length()


Bytes = NDArray[np.uint8]
SPARE_BYTES = 2
"""What the loops of N:M touch behind the last byte, since they take three bytes at a time."""


def pack(pattern: Pattern, form: Form) -> Bytes:
    """`uint8 [num_bytes]`: a pattern in that form; N:M refuses one that keeps not N of each M."""
    size = num_bytes(form, pattern.shape, pattern.num_kept)
    match form.kind:
        case Kind.BITMASK:
            packed = np.zeros(size, np.uint8)
            pack_bits(pattern.row_starts, pattern.columns, pattern.shape[1], packed)
            return packed
        case Kind.OFFSETS:
            packed = np.zeros(size, np.uint8)
            counts, offsets = _offset_parts(packed, pattern.shape)
            starts, columns = pattern.row_starts, pattern.columns
            pack_offsets(starts, columns, OFFSET_COLUMNS, counts, offsets)
            return packed
        case Kind.CSR:
            packed = np.empty(size, np.uint8)
            row_counts, deltas = _delta_parts(packed, pattern.shape)
            pack_deltas(pattern.row_starts, pattern.columns, row_counts, deltas)
            return packed
        case Kind.GROUPED:
            return _pack_groups(pattern, form, size)


def unpack(packed: Bytes, form: Form, shape: tuple[int, int], num_kept: int) -> Pattern:
    """The pattern that these bytes were packed from; refuses bytes that no pattern gives."""
    size = num_bytes(form, shape, num_kept)
    if packed.dtype != np.uint8 or packed.shape != (size,):
        found = f"{packed.dtype} {list(packed.shape)}"
        raise _corrupt(form, shape, f"{found} where uint8 [{size}] was expected")
    packed = np.require(packed, requirements=["A", "C"])
    row_starts = np.zeros(shape[0] + 1, np.int64)
    columns = np.zeros(num_kept + 1, column_dtype(shape[1]))
    match form.kind:
        case Kind.BITMASK:
            wrong = _unpack_bits(packed, shape, row_starts, columns)
        case Kind.OFFSETS:
            counts, offsets = _offset_parts(packed, shape)
            widths = OFFSET_COLUMNS, shape[1]
            wrong = unpack_offsets(counts, offsets, widths, row_starts, columns)
        case Kind.CSR:
            row_counts, deltas = _delta_parts(packed, shape)
            wrong = unpack_deltas(row_counts, deltas, shape[1], row_starts, columns)
        case Kind.GROUPED:
            wrong = _unpack_groups(packed, form, shape, row_starts, columns)
    if wrong >= 0:
        raise _corrupt(form, shape, f"row {wrong} has columns that cannot be, or too many")
    try:
        return Pattern(shape, row_starts, columns[:num_kept])
    except OpenwaferError as misfit:
        raise _corrupt(form, shape, misfit.diagnostics[0].message) from misfit


def _offset_parts(packed: Bytes, shape: tuple[int, int]) -> tuple[Bytes, Bytes]:
    rows, blocks = shape[0], num_blocks(shape[1])
    return packed[: rows * blocks].reshape(rows, blocks), packed[rows * blocks :]


def _delta_parts(packed: Bytes, shape: tuple[int, int]) -> tuple[Columns, Columns]:
    rows, columns = shape
    width = count_bytes(columns)
    counts, deltas = packed[: rows * width], packed[rows * width :]
    return counts.view(f"<u{width}"), deltas.view(column_dtype(columns).newbyteorder("<"))


def _unpack_bits(
    packed: Bytes, shape: tuple[int, int], row_starts: NDArray[np.int64], columns: Columns
) -> int:
    kept, positions = int(np.bitwise_count(packed).sum()), shape[0] * shape[1]
    if kept != columns.size - 1:
        raise _corrupt(
            Form(Kind.BITMASK), shape, f"{kept} bits are set for {columns.size - 1} kept positions"
        )
    if positions % 8 and packed[-1] >> positions % 8:
        raise _corrupt(Form(Kind.BITMASK), shape, "bits are set behind the last position")
    unpack_bits(packed, shape[1], row_starts, columns)
    return -1


@cache
def _choices(form: Form) -> NDArray[np.int64]:
    """The choices of N among M as bits, ascending; a group's code is the place of its choice."""
    choices = np.arange(1 << form.group, dtype=np.int64)
    kept: NDArray[np.int64] = choices[np.bitwise_count(choices) == form.kept]
    return kept


def _pack_groups(pattern: Pattern, form: Form, size: int) -> Bytes:
    code_of = np.full(1 << form.group, -1, np.int64)
    code_of[_choices(form)] = np.arange(_choices(form).size)
    packed = np.zeros(size + SPARE_BYTES, np.uint8)
    parts = (pattern.shape[1] // form.group, form.group, code_bits(form))
    row = pack_groups(pattern.row_starts, pattern.columns, code_of, parts, packed)
    if row >= 0:
        raise error(
            "sparse-form-misfit",
            f"row {row} of the pattern does not keep {form.kept} of each {form.group} columns",
            help="make the mask by groups, or pack it as bitmask, offsets or csr",
        )
    return packed[:size]


def _unpack_groups(
    packed: Bytes,
    form: Form,
    shape: tuple[int, int],
    row_starts: NDArray[np.int64],
    columns: Columns,
) -> int:
    groups = shape[1] // form.group
    kept = shape[0] * groups * form.kept
    if kept != columns.size - 1:
        raise _corrupt(form, shape, f"{columns.size - 1} kept positions where it keeps {kept}")
    spare_bits = -shape[0] * groups * code_bits(form) % 8
    if spare_bits and packed[-1] >> (8 - spare_bits):
        raise _corrupt(form, shape, "bits are set behind the last code")
    parts = (groups, form.group, code_bits(form))
    padded = np.concatenate([packed, np.zeros(SPARE_BYTES, np.uint8)])
    return unpack_groups(padded, _choices(form), parts, row_starts, columns)


def _corrupt(form: Form, shape: tuple[int, int], what: str) -> OpenwaferError:
    return error(
        "sparse-pattern-corrupt",
        f"these bytes are no {FORMAT} of {shape[0]} x {shape[1]} as {form}: {what}",
        help="the bytes were damaged, or form, shape or count are those of another weight;"
        " take them from an older checkpoint",
    )


COUNT_BYTES: Final = 8


@dataclass(frozen=True)
class PackedRoom:
    """Room for patterns of one weight.

    Its bytes are the number of kept positions, little-endian, then the pattern in its form, then
    zeros.

    Attributes:
        form: of the pattern.
        shape: rows and columns of the weight.
        capacity: most positions that are ever kept.
    """

    form: Form
    shape: tuple[int, int]
    capacity: int

    @classmethod
    def smallest(cls, shape: tuple[int, int], capacity: int) -> "PackedRoom":
        """Room in the form that takes the fewest bytes."""
        return cls(smallest_form(shape, capacity), shape, capacity)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the room."""
        return COUNT_BYTES + num_bytes(self.form, self.shape, self.capacity)

    def packed(self, pattern: Pattern) -> Tensor:
        """`uint8 [num_bytes]` on the CPU.

        Raises:
            OpenwaferError: ``sparse-mask`` for a pattern of another shape, or a larger one.
        """
        if pattern.shape != self.shape or pattern.num_kept > self.capacity:
            raise error(
                "sparse-mask",
                f"a mask of {list(pattern.shape)} keeps {pattern.num_kept} positions, and the "
                f"weight of {list(self.shape)} has room for {self.capacity}",
                help="give a mask of the weight's own shape that keeps no more positions",
            )
        room = np.zeros(self.num_bytes, np.uint8)
        room[:COUNT_BYTES].view("<i8")[0] = pattern.num_kept
        found = pack(pattern, self.form)
        room[COUNT_BYTES : COUNT_BYTES + found.size] = found
        return torch.from_numpy(room)

    def pattern(self, packed: Tensor) -> Pattern:
        """The pattern of such bytes on any device.

        Raises:
            OpenwaferError: ``sparse-pattern`` for bytes that are no pattern.
        """
        room = packed.detach().cpu().contiguous().numpy()
        num_kept = int(room[:COUNT_BYTES].copy().view("<i8")[0])
        if room.size != self.num_bytes or not 0 <= num_kept <= self.capacity:
            raise error(
                "sparse-pattern",
                f"{room.size} bytes for {num_kept} kept positions are no pattern of "
                f"{list(self.shape)} with room for {self.capacity}, which takes {self.num_bytes}",
                help="the weights are damaged, or those of another model: take another checkpoint",
            )
        end = COUNT_BYTES + num_bytes(self.form, self.shape, num_kept)
        return unpack(room[COUNT_BYTES:end], self.form, self.shape, num_kept)

    def padded(self, values: Tensor) -> Tensor:
        """`[capacity]`: values `[num_kept]`, then zeros."""
        return torch.cat([values, values.new_zeros(self.capacity - values.numel())])

    def dense(self, values: Tensor, packed: Tensor) -> Tensor:
        """`[rows, columns]`: values `[capacity]` at the kept positions, zeros elsewhere."""
        pattern = self.pattern(packed)
        return pattern.dense(values[: pattern.num_kept])


@compiled
def pack_bits(
    row_starts: NDArray[np.int64], columns: NDArray[Any], width: int, packed: NDArray[np.uint8]
) -> None:
    """Set the bit of each kept position; `packed` comes as zeros."""
    for row in range(row_starts.size - 1):
        for place in range(row_starts[row], row_starts[row + 1]):
            bit = row * width + np.int64(columns[place])
            packed[bit >> 3] |= np.uint8(1 << (bit & 7))


@compiled
def unpack_bits(
    packed: NDArray[np.uint8], width: int, row_starts: NDArray[np.int64], columns: NDArray[Any]
) -> None:
    """Columns of the set bits, of which there are as many as kept positions."""
    place = 0
    bit = 0
    for row in range(row_starts.size - 1):
        for column in range(width):
            columns[place] = column
            place += (packed[bit >> 3] >> (bit & 7)) & 1
            bit += 1
        row_starts[row + 1] = place


@compiled
def pack_offsets(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    block: int,
    counts: NDArray[np.uint8],
    offsets: NDArray[np.uint8],
) -> None:
    """Columns counted by block (`[rows, blocks]`, comes as zeros), and their places in it."""
    for row in range(row_starts.size - 1):
        for place in range(row_starts[row], row_starts[row + 1]):
            column = np.uint32(columns[place])
            number = column // np.uint32(block)
            counts[row, number] += np.uint8(1)
            offsets[place] = column - number * np.uint32(block)


@compiled
def unpack_offsets(
    counts: NDArray[np.uint8],
    offsets: NDArray[np.uint8],
    widths: tuple[int, int],
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
) -> int:
    """Columns from counts by block and places in the block; widths of a block and of a row."""
    block, width = widths
    place = 0
    for row in range(counts.shape[0]):
        for number in range(counts.shape[1]):
            count = np.int64(counts[row, number])
            if place + count > offsets.size:
                return row
            for _ in range(count):
                offset = np.int64(offsets[place])
                if offset >= block or number * block + offset >= width:
                    return row
                columns[place] = number * block + offset
                place += 1
        row_starts[row + 1] = place
    return -1 if place == offsets.size else counts.shape[0] - 1


@compiled
def pack_deltas(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    counts: NDArray[Any],
    deltas: NDArray[Any],
) -> None:
    """Columns of each row counted, and each one's distance from the one before it."""
    for row in range(row_starts.size - 1):
        counts[row] = row_starts[row + 1] - row_starts[row]
        before = np.int64(0)
        for place in range(row_starts[row], row_starts[row + 1]):
            column = np.int64(columns[place])
            deltas[place] = column - before
            before = column


@compiled
def unpack_deltas(
    counts: NDArray[Any],
    deltas: NDArray[Any],
    width: int,
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
) -> int:
    """Columns from their distances."""
    place = 0
    for row in range(counts.size):
        column = np.int64(0)
        count = np.int64(counts[row])
        if place + count > deltas.size:
            return row
        for _ in range(count):
            column += np.int64(deltas[place])
            if column >= width:
                return row
            columns[place] = column
            place += 1
        row_starts[row + 1] = place
    return -1 if place == deltas.size else counts.size - 1


@compiled
def pack_groups(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    code_of: NDArray[np.int64],
    shape: tuple[int, int, int],
    packed: NDArray[np.uint8],
) -> int:
    """Code after code of each group's choice; `code_of` tells it by the bits of the choice.

    `shape` is groups in a row, columns in a group, bits of a code; `packed` comes as zeros, with
    three bytes more than the codes need. Returns the first row in which a choice has no code.
    """
    groups, group, bits = shape
    at = 0
    for row in range(row_starts.size - 1):
        place = row_starts[row]
        for number in range(groups):
            choice = np.int64(0)
            while place < row_starts[row + 1] and columns[place] < (number + 1) * group:
                choice |= 1 << (np.int64(columns[place]) - number * group)
                place += 1
            if code_of[choice] < 0:
                return row
            code = code_of[choice] << (at & 7)
            for byte in range(3):
                packed[(at >> 3) + byte] |= np.uint8((code >> (8 * byte)) & 255)
            at += bits
    return -1


@compiled
def unpack_groups(
    packed: NDArray[np.uint8],
    choices: NDArray[np.int64],
    shape: tuple[int, int, int],
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
) -> int:
    """Columns from codes; `choices` tells by the code which bits are the kept ones."""
    groups, group, bits = shape
    at = 0
    place = 0
    for row in range(row_starts.size - 1):
        for number in range(groups):
            code = np.int64(0)
            for byte in range(3):
                code |= np.int64(packed[(at >> 3) + byte]) << (8 * byte)
            code = (code >> (at & 7)) & ((1 << bits) - 1)
            if code >= choices.size:
                return row
            for column in range(group):
                columns[place] = number * group + column
                place += (choices[code] >> column) & 1
            at += bits
        row_starts[row + 1] = place
    return -1
