"""What a PE's memory consists of, for the compiled core and for reports."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.dtypes import DTYPES, Kind
from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.fabric import engine
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import Image, Symbol
from openwafer.sdk.program.program import Program

_UNSET: Final = re.compile(r'^global @(?:[^\s"]+|"[^"]*") (\d+) (\d+)$', re.MULTILINE)
"""A variable without words at start-up, in an image's code: its address and words."""
_SIGNS: Final = {Kind.SIGNED: mb.SIGNED, Kind.UNSIGNED: mb.UNSIGNED}
_MOST_VARIABLES: Final = mb.NO_VARIABLE >> mb.ELEMENT_BITS


@dataclass(frozen=True)
class Stretch:
    """Words of memory that belong together.

    Attributes:
        begin: first word.
        end: first word behind it.
        symbol: the variable; None for the stack, and for what nothing lies in.
        is_stack: whether the frames of functions lie there.
    """

    begin: int
    end: int
    symbol: Symbol | None = None
    is_stack: bool = False


def stretches(image: Image) -> tuple[Stretch, ...]:
    """All of a PE's memory, by address; nothing for an image that names no variables."""
    return tuple(_stretches(image)) if image.symbols else ()


def _stretches(image: Image) -> Iterator[Stretch]:
    end = 0
    for symbol in sorted(image.symbols, key=lambda symbol: symbol.address):
        if symbol.address > end:
            yield Stretch(end, symbol.address)
        end = symbol.address + symbol.num_words
        yield Stretch(symbol.address, end, symbol)
    if image.stack_base > end:
        yield Stretch(end, image.stack_base)
    yield Stretch(image.stack_base, MEMORY_WORDS, is_stack=True)


def stretch_at(known: Sequence[Stretch], address: int) -> Stretch:
    """The stretch that holds a word of memory."""
    return known[bisect_right(known, address, key=lambda stretch: stretch.begin) - 1]


def fill_maps(states: Sequence[Array], program: Program) -> None:
    """Give images maps of their memory, for :mod:`~openwafer.sdk.fabric.overrun`.

    Images whose variables have the same places share one. That of an image without variables says
    that all of memory is the stack. Images of more kinds than there are maps have none.
    """
    tables = Tables(states[0])
    numbers: dict[bytes, int] = {}
    for number, image in enumerate(program.images):
        content = _variables_of_words(stretches(image)).tobytes()
        if content in numbers or len(numbers) < w.MAX_MAPS:
            tables.image[number, w.I_MAP] = numbers.setdefault(content, len(numbers)) + 1
    if numbers:
        tables.map[: len(numbers), 0] = engine.look_address()
    for content, number in numbers.items():
        words = np.frombuffer(content, np.uint16)
        tables.map[number, 1:].view(np.uint16)[: words.size] = words
    for state in states:
        _fill_mailboxes(state, program.images_by_number)


def _fill_mailboxes(state: Array, image_of: NDArray[np.int32]) -> None:
    """Tell the PEs of a band where the map of their image lies."""
    tables, first = Tables(state), int(state[w.G_FIRST])
    own = image_of[first : state[w.G_END]]
    maps = tables.image[own, w.I_MAP]
    pes = np.flatnonzero((own >= 0) & (maps > 0))
    addresses = state.ctypes.data + 8 * (w.MAP + (maps[pes] - 1) * w.MAP_WORDS)
    tables.mailbox[first + pes, mb.MAP] = addresses
    tables.mailbox[first + pes, mb.MAP_STATE] = state.ctypes.data


def fill_unwritten(states: Sequence[Array], program: Program) -> None:
    """Note which words of PEs' memory begin without a value, and tell their code where that is.

    It is told the size of memory's stretches, too.
    """
    rows = Tables(states[0]).unwritten
    for number, image in enumerate(program.images):
        pes = np.flatnonzero(program.images_by_number == number)
        for found in _UNSET.finditer(image.code):
            address, num_words = map(int, found.groups())
            rows[pes] |= bits_of_words(address, num_words)
        last_byte = max(1, WORD_BYTES * image.stack_base) - 1
        shift = max(0, last_byte.bit_length() - mb.LAST_STRETCH.bit_length())
        Tables(states[0]).mailbox[pes, mb.STRETCH_SHIFT] = shift
    for state in states:
        pes = np.arange(state[w.G_FIRST], state[w.G_END])
        addresses = state.ctypes.data + 8 * (w.UNWRITTEN + pes * w.UNWRITTEN_WORDS)
        Tables(state).mailbox[pes, mb.UNWRITTEN] = addresses


def bits_of_words(address: int, num_words: int) -> Array:
    """A row of bits, one a word of a PE's memory, with those of some words set."""
    bits = np.zeros(MEMORY_WORDS, np.bool_)
    bits[address : address + num_words] = True
    return np.packbits(bits, bitorder="little").view(np.int64)


def _variables_of_words(known: Sequence[Stretch]) -> NDArray[np.uint16]:
    """By word, up to the stack, whose number is 0: the number of the variable."""
    words = np.full(known[-1].begin if known else 0, mb.NO_VARIABLE, np.uint16)
    for number, one in enumerate(known):
        if one.symbol is not None:
            own = (number + 1) % _MOST_VARIABLES << mb.ELEMENT_BITS
            words[one.begin : one.end] = own | _element_kind(one.symbol)
    return words


def _element_kind(symbol: Symbol) -> int:
    """Words of an element as vector operations have them, or 0, and the mark of integers."""
    kind = DTYPES.get(symbol.element_type)
    if kind is None:
        return 0
    return {16: 1, 32: 2}.get(kind.num_bits, 0) | _SIGNS.get(kind.kind, 0)
