"""Config registers behind pointers, as old code reaches them.

Such a pointer is made of an integer. It counts bytes, so that registers begin at 0xE000; a known
one may also be the word address of a register.
"""

from typing import Final

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema.analysis import Analysis
from openwafer.sdk.csl.types import Type
from openwafer.sdk.ir import function as ir

FIRST_BYTE: Final = 0xE000
_WORDS: Final = range(FIRST_BYTE // WORD_BYTES, (1 << 16) // WORD_BYTES)


def is_one(address: ir.Value) -> bool:
    """Whether a known address is none of memory."""
    if not isinstance(address, ir.Constant):
        return False
    return _bits(address) in _WORDS or _bits(address) >= FIRST_BYTE


def number_of(address: ir.Value) -> ir.Value:
    """Word address of the register that a known address stands for."""
    assert isinstance(address, ir.Constant)
    bits = _bits(address)
    return ir.Constant(bits >> 1 if bits >= FIRST_BYTE else bits, ir.Type.U16)


def load(analysis: Analysis, kind: Type, number: ir.Value) -> ir.Value:
    """Read a register."""
    register = analysis.emit("read_register", number, type=ir.Type.U16)
    if types.is_byte(kind):
        return analysis.emit("cast", register, type=types.ir_type(kind))
    return cast_bits(analysis, register, types.ir_type(kind))


def store(analysis: Analysis, number: ir.Value, value: ir.Value) -> None:
    """Write a register."""
    analysis.emit("write_register", number, cast_bits(analysis, value, ir.Type.U16))


def load_either(analysis: Analysis, kind: Type, address: ir.Value) -> ir.Value:
    """Read what a pointer stands for that only run time knows."""
    slot = analysis.builder.new_slot("content", types.ir_type(kind))
    number, in_memory, end = _fork(analysis, address)
    analysis.emit("set", load(analysis, kind, number), names=(slot,))
    analysis.jump(end)
    analysis.enter(in_memory)
    word = analysis.emit("load", address, type=types.ir_type(kind))
    analysis.emit("set", word, names=(slot,))
    analysis.jump(end)
    analysis.enter(end)
    return analysis.emit("get", type=types.ir_type(kind), names=(slot,))


def store_either(analysis: Analysis, address: ir.Value, value: ir.Value) -> None:
    """Write to a pointer that only run time knows."""
    number, in_memory, end = _fork(analysis, address)
    store(analysis, number, value)
    analysis.jump(end)
    analysis.enter(in_memory)
    analysis.emit("store", address, value)
    analysis.jump(end)
    analysis.enter(end)


def _fork(analysis: Analysis, address: ir.Value) -> tuple[ir.Value, ir.Block, ir.Block]:
    """Go on where the pointer is a register: its number, the other block, the block behind."""
    blocks = [analysis.new_block(hint) for hint in ("register", "memory", "accessed")]
    bits = analysis.emit("bitcast", address, type=ir.Type.U16)
    first = ir.Constant(FIRST_BYTE, ir.Type.U16)
    is_register = analysis.emit("ge", bits, first, type=ir.Type.BOOL)
    analysis.branch(is_register, blocks[0], blocks[1])
    analysis.enter(blocks[0])
    number = analysis.emit("shr", bits, ir.Constant(1, ir.Type.U16), type=ir.Type.U16)
    return number, blocks[1], blocks[2]


def cast_bits(analysis: Analysis, value: ir.Value, kind: ir.Type) -> ir.Value:
    """The same bits in another type of that width."""
    return value if value.type is kind else analysis.emit("bitcast", value, type=kind)


def _bits(address: ir.Constant) -> int:
    assert isinstance(address.value, int)
    return address.value & 0xFFFF
