"""Code of a function as the intermediate representation has it: what PEs run is native code."""

import functools
import re
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.debug.stack import Frame
from openwafer.sdk.ir import text
from openwafer.sdk.ir.function import Module
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.program import Program

ROWS: Final = 1 << 20
"""Addresses of a function."""
_FUNCTIONS: Final = 1 << 16
"""Functions of an image."""
_PLACE: Final = re.compile(r"(.*?) !(\d+)")


@dataclass(frozen=True)
class Row:
    """A line of the text: an instruction, a label or a slot.

    Attributes:
        place: number of the instruction's place; -1 for what is none.
    """

    text: str
    place: int = -1


def rows_of(image: Image, function: str) -> tuple[Row, ...]:
    """The lines of a function of an image, in their order; none where it has no such code."""
    return _rows(image.code, image.name, function)


@functools.lru_cache(maxsize=256)
def _rows(code: str, name: str, function: str) -> tuple[Row, ...]:
    found = _module(code, name).functions.get(function)
    if found is None:
        return ()
    return tuple(_row(line) for line in text.render_function(found).splitlines()[1:-1])


@functools.lru_cache(maxsize=16)
def _module(code: str, name: str) -> Module:
    return text.parse(code, name)


def address_of(program: Program, pe: int, frame: Frame) -> int:
    """A number for the place where a function waits, for editors: those of its rows follow."""
    image = int(program.images_by_number[pe])
    names = [program.debug.functions[one].name for one in program.images[image].names.functions]
    function = names.index(frame.function.name)
    rows = rows_of(program.images[image], frame.function.name)
    first = next((n for n, row in enumerate(rows) if row.place == frame.place), 0)
    return (image * _FUNCTIONS + function) * ROWS + first


def rows_at(program: Program, address: int) -> tuple[Row, ...]:
    """The rows of the function that an address is of; none where there is no such function."""
    image, function = divmod(address // ROWS, _FUNCTIONS)
    if not 0 <= image < len(program.images):
        return ()
    numbers = program.images[image].names.functions
    if function >= len(numbers):
        return ()
    return rows_of(program.images[image], program.debug.functions[numbers[function]].name)


def _row(line: str) -> Row:
    found = _PLACE.fullmatch(line)
    return Row(line) if found is None else Row(found[1], int(found[2]))
