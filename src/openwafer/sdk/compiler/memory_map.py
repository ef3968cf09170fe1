"""The memory map of a program: what lies where in the memory of its PEs, and what is left."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.program.image import Image, Symbol
from openwafer.sdk.program.input_queues import described
from openwafer.sdk.program.program import Program

_NUM_BANKS: Final = 8
_HEAD: Final = """\
Each PE has {memory} bytes. The code's size is an estimate: a word for each instruction of the
intermediate code. Two vectors that an operation reads in banks that are equal modulo 4 take turns.
"""


def memory_map(program: Program) -> str:
    """Text of the map: for each image its sizes, its variables by address, and its queues."""
    head = _HEAD.format(memory=WORD_BYTES * MEMORY_WORDS)
    parts = (
        "\n".join(_lines(image, int(np.count_nonzero(program.image_of == number))))
        for number, image in enumerate(program.images)
    )
    return "\n".join([head, *parts])


def _lines(image: Image, num_pes: int) -> Iterator[str]:
    end = image.stack_base - image.code_words
    left = MEMORY_WORDS - image.stack_base
    yield f"{image.name}, {num_pes} PEs"
    code = f"code about {_bytes(image.code_words)}"
    yield f"  data {_bytes(end)}, {code}, left for the stack {_bytes(left)}"
    yield "  address   bytes  bank  variable"
    for symbol in sorted(image.symbols, key=lambda symbol: symbol.address):
        address = WORD_BYTES * symbol.address
        bank = symbol.address % _NUM_BANKS
        yield f"   {address:#06x}  {symbol.num_bytes:6}  {bank:4}  {symbol.name}: {_type(symbol)}"
    if image.queues:
        yield "  queues at the start; * where the compiler chose"
    yield from (f"    {line}" for line in described(image.queues))
    yield ""


def _bytes(words: int) -> str:
    return f"{WORD_BYTES * words:,} bytes"


def _type(symbol: Symbol) -> str:
    dims = f"[{', '.join(map(str, symbol.shape))}]" if symbol.shape else ""
    return f"{dims}{symbol.element_type}"
