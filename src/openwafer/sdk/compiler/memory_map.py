"""The memory map of a program: what lies where in the memory of its PEs, and what is left."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.program.debug_info import DebugInfo, Home, TypeInfo, TypeKind
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.input_queues import described
from openwafer.sdk.program.program import Program

_NUM_BANKS: Final = 8
_HEAD: Final = """\
Each PE has {memory} bytes. The code's size is an estimate: a word for each instruction of the
intermediate code. Two vectors that an operation reads in banks that are equal modulo 4 take turns.
"""


@dataclass(frozen=True)
class MemoryUse:
    """Words of a PE's memory: of data, of code, as estimated, and those left for the stack."""

    data_words: int
    code_words: int
    left_words: int

    @classmethod
    def of(cls, image: Image) -> Self:
        """What an image takes."""
        end = image.stack_base - image.code_words
        return cls(end, image.code_words, MEMORY_WORDS - image.stack_base)


def memory_map(program: Program) -> str:
    """Text of the map: for each image its sizes, its variables by address, and its queues."""
    head = _HEAD.format(memory=WORD_BYTES * MEMORY_WORDS)
    parts = (
        "\n".join(_lines(program, image, int(np.count_nonzero(program.image_of == number))))
        for number, image in enumerate(program.images)
    )
    return "\n".join([head, *parts])


def _lines(program: Program, image: Image, num_pes: int) -> Iterator[str]:
    debug = program.debug
    named = [debug.variables[number] for number in image.names.variables]
    types = {one.name: debug.types[one.type] for one in named if one.home is Home.MEMORY}
    use = MemoryUse.of(image)
    yield f"{image.name}, {num_pes} PEs"
    code = f"code about {_bytes(use.code_words)}"
    yield f"  data {_bytes(use.data_words)}, {code}, left for the stack {_bytes(use.left_words)}"
    yield "  address   bytes  bank  variable"
    for symbol in sorted(image.symbols, key=lambda symbol: symbol.address):
        address = WORD_BYTES * symbol.address
        bank = symbol.address % _NUM_BANKS
        kind = types.get(symbol.name)
        name = symbol.type_name if kind is None else kind.name
        yield f"   {address:#06x}  {symbol.num_bytes:6}  {bank:4}  {symbol.name}: {name}"
        if kind is not None:
            yield from (f"{'':25}{line}" for line in _fields(debug, kind, symbol.name))
    if image.queues:
        yield "  queues at the start; * where the compiler chose"
    yield from (f"    {line}" for line in described(image.queues))
    yield ""


def _bytes(words: int) -> str:
    return f"{WORD_BYTES * words:,} bytes"


def _fields(debug: DebugInfo, kind: TypeInfo, path: str, begin: int = 0) -> Iterator[str]:
    """The fields of a struct, or of one in an array, with the byte where each begins."""
    if kind.kind is TypeKind.ARRAY:
        kind, path = debug.types[kind.element], f"{path}[]"
    for field in kind.fields:
        inner, name, bit = debug.types[field.type], f"{path}.{field.name}", begin + field.bit_offset
        part = f" bit {bit % 8}" if bit % 8 or field.num_bits % 8 else ""
        yield f"+{bit // 8}{part} {name}: {inner.name}"
        yield from _fields(debug, inner, name, bit)
