"""Operands of vector operations: from mailbox or DSR into a thread, and element by element."""

from typing import Final

from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.fabric import queues
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import (
    compiled,
    inlined,
    load_16,
    load_32,
    store_16,
    store_32,
)
from openwafer.sdk.fabric.rows import dsr_row, mailbox_row, memory_row
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import descriptor as dsd
from openwafer.sdk.program import mailbox as mb

KIND_MEM1D: Final = int(dsd.DsdKind.MEM1D)
KIND_FABIN: Final = int(dsd.DsdKind.FABIN)
KIND_FABOUT: Final = int(dsd.DsdKind.FABOUT)
KIND_MEM4D: Final = int(dsd.DsdKind.MEM4D)
KIND_CIRCULAR: Final = int(dsd.DsdKind.CIRCULAR)
FLAG_WAVELET_INDEX: Final = int(dsd.DsdFlag.WAVELET_INDEX)
GIVEN_SCALAR: Final = int(mb.OperandKind.SCALAR)
GIVEN_DSD: Final = int(mb.OperandKind.DSD)
GIVEN_DSR: Final = int(mb.OperandKind.DSR)
GIVEN_POINTER: Final = int(mb.OperandKind.POINTER)
GIVEN_FIFO: Final = int(mb.OperandKind.FIFO)
ADDRESS_MASK: Final = 0xFFFF


@compiled
def word_of(s: State, start: int, number: int) -> int:
    """A 16-bit word of a packed descriptor."""
    return (s[start + (number >> 2)] >> (16 * (number & 3))) & 0xFFFF


@compiled
def signed_word(s: State, start: int, number: int) -> int:
    """The same, signed."""
    value = (s[start + (number >> 2)] >> (16 * (number & 3))) & 0xFFFF
    return value - 65536 if value & 0x8000 else value


@compiled
def clear(s: State, operand: int) -> None:
    """Make an operand nothing."""
    for k in range(w.OPERAND_WORDS):
        s[operand + k] = 0


@compiled
def decode_dsd(s: State, start: int, operand: int) -> bool:
    """Fill an operand from a packed descriptor; false when it holds none."""
    head = word_of(s, start, dsd.WORD_KIND)
    kind = head & dsd.KIND_MASK
    clear(s, operand)
    s[operand + w.O_FLAGS] = head & ~dsd.KIND_MASK
    s[operand + w.O_WORDS] = word_of(s, start, dsd.WORD_ELEMENT)
    s[operand + w.O_EXTENT] = word_of(s, start, 2) | word_of(s, start, 3) << 16
    if kind in (KIND_FABIN, KIND_FABOUT):
        s[operand + w.O_KIND] = w.FABIN if kind == KIND_FABIN else w.FABOUT
        s[operand + w.O_FLAGS] |= word_of(s, start, dsd.WORD_PRIORITY) << w.PRIORITY_SHIFT
        s[operand + w.O_COLOR] = word_of(s, start, dsd.WORD_COLOR)
        s[operand + w.O_QUEUE] = word_of(s, start, dsd.WORD_QUEUE)
        s[operand + w.O_TRANSFORM] = word_of(s, start, dsd.WORD_CONTROL_TRANSFORM)
        return True
    s[operand + w.O_KIND] = w.MEMORY
    s[operand + w.O_ADDRESS] = word_of(s, start, dsd.WORD_BASE)
    if kind == KIND_MEM1D:
        s[operand + w.O_DIMS] = 1
        s[operand + w.O_STRIDES] = signed_word(s, start, dsd.WORD_STRIDE)
        return True
    if kind == KIND_CIRCULAR:
        step, around = word_of(s, start, dsd.WORD_ELEMENT), word_of(s, start, dsd.WORD_WRAPAROUND)
        s[operand + w.O_DIMS] = 2
        s[operand + w.O_EXTENTS] = around
        s[operand + w.O_EXTENTS + 1] = w.NEVER
        s[operand + w.O_STRIDES] = step
        s[operand + w.O_STRIDES + 1] = -(around - 1) * step
        return True
    if kind != KIND_MEM4D:
        return False
    s[operand + w.O_DIMS] = word_of(s, start, 2)
    s[operand + w.O_EXTENT] = 1
    for dim in range(s[operand + w.O_DIMS]):
        s[operand + w.O_EXTENTS + dim] = word_of(s, start, dsd.WORD_EXTENTS4 + dim)
        s[operand + w.O_STRIDES + dim] = signed_word(s, start, dsd.WORD_STRIDES4 + dim)
        s[operand + w.O_EXTENT] *= s[operand + w.O_EXTENTS + dim]
    return True


@compiled
def decode(s: State, pe: int, place: int, operand: int) -> bool:
    """Fill an operand of a request; false when it is not one."""
    start = mailbox_row(pe) + mb.OPERANDS + place * mb.OPERAND_WORDS
    kind = s[start]
    value = s[start + 1]
    if kind == GIVEN_DSD:
        return decode_dsd(s, start + 1, operand)
    clear(s, operand)
    if kind == GIVEN_SCALAR:
        s[operand + w.O_KIND] = w.SCALAR
        s[operand + w.O_VALUE] = value
    elif kind == GIVEN_POINTER:
        s[operand + w.O_KIND] = w.POINTER
        s[operand + w.O_ADDRESS] = value & ADDRESS_MASK
    elif kind == GIVEN_FIFO:
        s[operand + w.O_KIND] = w.FIFO
        s[operand + w.O_QUEUE] = value
    elif kind == GIVEN_DSR:
        number = (value >> 8) * 16 + (value & 15)
        dsr = dsr_row(pe, number)
        for k in range(w.OPERAND_WORDS):
            s[operand + k] = s[dsr + k]
        s[operand + w.O_DSR] = number + 1
        return s[operand + w.O_KIND] != w.NOTHING
    return True


@compiled
def add_index(s: State, operand: int, index: int) -> None:
    """Apply an operation's index: part of the wavelets, or an offset into memory."""
    if s[operand + w.O_FLAGS] & FLAG_WAVELET_INDEX == 0:
        return
    if s[operand + w.O_KIND] == w.MEMORY:
        s[operand + w.O_ADDRESS] += index


@compiled
def step(s: State, operand: int) -> None:
    """Move a memory operand to its next element."""
    if s[operand + w.O_DIMS] == 1:
        s[operand + w.O_ADDRESS] += s[operand + w.O_STRIDES]
        return
    for dim in range(s[operand + w.O_DIMS]):
        s[operand + w.O_INDEX + dim] += 1
        if s[operand + w.O_INDEX + dim] < s[operand + w.O_EXTENTS + dim]:
            s[operand + w.O_ADDRESS] += s[operand + w.O_STRIDES + dim]
            return
        s[operand + w.O_INDEX + dim] = 0


@inlined
def load(s: State, pe: int, address: int, num_words: int) -> int:
    """An element of memory as raw bits."""
    at = address & ADDRESS_MASK
    if at + num_words > MEMORY_WORDS:
        queues.fail(s, w.ERROR_BOUNDS, pe, at, 0)
        return 0
    at += 4 * memory_row(pe)
    value: int = load_16(s, at) if num_words == 1 else load_32(s, at)
    return value


@inlined
def store(s: State, pe: int, address: int, num_words: int, value: int) -> None:
    """Write raw bits to memory."""
    at = address & ADDRESS_MASK
    if at + num_words > MEMORY_WORDS:
        queues.fail(s, w.ERROR_BOUNDS, pe, at, 1)
        return
    at += 4 * memory_row(pe)
    if num_words == 1:
        store_16(s, at, value)
    else:
        store_32(s, at, value)
