"""Patterns to bytes and back, exactly; the bytes say neither form nor shape nor count."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.packed import loops
from openwafer.training.sparsity.packed.form import (
    FORMAT,
    OFFSET_COLUMNS,
    Form,
    Kind,
    code_bits,
    count_bytes,
    num_blocks,
    num_bytes,
)
from openwafer.training.sparsity.pattern import Columns, Pattern, column_dtype

Bytes = NDArray[np.uint8]
SPARE_BYTES = 2
"""What the loops of N:M touch behind the last byte, since they take three bytes at a time."""


def pack(pattern: Pattern, form: Form) -> Bytes:
    """`uint8 [num_bytes]`: a pattern in that form; N:M refuses one that keeps not N of each M."""
    size = num_bytes(form, pattern.shape, pattern.num_kept)
    match form.kind:
        case Kind.BITMASK:
            packed = np.zeros(size, np.uint8)
            loops.pack_bits(pattern.row_starts, pattern.columns, pattern.shape[1], packed)
            return packed
        case Kind.OFFSETS:
            packed = np.zeros(size, np.uint8)
            counts, offsets = _offset_parts(packed, pattern.shape)
            starts, columns = pattern.row_starts, pattern.columns
            loops.pack_offsets(starts, columns, OFFSET_COLUMNS, counts, offsets)
            return packed
        case Kind.CSR:
            packed = np.empty(size, np.uint8)
            row_counts, deltas = _delta_parts(packed, pattern.shape)
            loops.pack_deltas(pattern.row_starts, pattern.columns, row_counts, deltas)
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
            wrong = loops.unpack_offsets(counts, offsets, widths, row_starts, columns)
        case Kind.CSR:
            row_counts, deltas = _delta_parts(packed, shape)
            wrong = loops.unpack_deltas(row_counts, deltas, shape[1], row_starts, columns)
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
    loops.unpack_bits(packed, shape[1], row_starts, columns)
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
    row = loops.pack_groups(pattern.row_starts, pattern.columns, code_of, parts, packed)
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
    return loops.unpack_groups(padded, _choices(form), parts, row_starts, columns)


def _corrupt(form: Form, shape: tuple[int, int], what: str) -> OpenwaferError:
    return error(
        "sparse-pattern-corrupt",
        f"these bytes are no {FORMAT} of {shape[0]} x {shape[1]} as {form}: {what}",
        help="the bytes were damaged, or form, shape or count are those of another weight;"
        " take them from an older checkpoint",
    )
