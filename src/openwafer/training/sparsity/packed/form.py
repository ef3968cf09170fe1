"""The forms in which a pattern is packed, their names, and the bytes that each one takes."""

import re
from dataclasses import dataclass
from enum import StrEnum
from math import comb
from typing import Final

from openwafer.diagnostics import error
from openwafer.training.sparsity.pattern import NARROW_COLUMNS, column_dtype

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
