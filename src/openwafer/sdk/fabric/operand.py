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
WORD_MASK: Final = 0xFFFF
SIGN: Final = 0x8000
# Where words lie in the first two cells of a packed descriptor, and the cells of the others.
BASE_SHIFT, COLOR_SHIFT = 16 * dsd.WORD_BASE, 16 * dsd.WORD_COLOR
EXTENT_SHIFT: Final = 16 * dsd.WORD_EXTENT
STRIDE_SHIFT, QUEUE_SHIFT = 16 * (dsd.WORD_STRIDE - 4), 16 * (dsd.WORD_QUEUE - 4)
ELEMENT_SHIFT: Final = 16 * (dsd.WORD_ELEMENT - 4)
TRANSFORM_SHIFT: Final = 16 * (dsd.WORD_CONTROL_TRANSFORM - 4)
WRAPAROUND_SHIFT: Final = 16 * (dsd.WORD_WRAPAROUND - 4)
PRIORITY_SHIFT: Final = 16 * (dsd.WORD_PRIORITY - 4)
EXTENTS4_CELL, STRIDES4_CELL = dsd.WORD_EXTENTS4 // 4, dsd.WORD_STRIDES4 // 4


@compiled
def clear(s: State, operand: int) -> None:
    """Make an operand nothing."""
    for k in range(w.OPERAND_WORDS):
        s[operand + k] = 0


def decode_words(s: State, start: int, operand: int) -> bool:
    """Fill an operand from a packed descriptor, four words a cell; false when it holds none.

    Compiled code decodes what requests bring, and Python what registers hold at start-up.
    """
    low, high = s[start], s[start + 1]
    kind = low & dsd.KIND_MASK
    element = (high >> ELEMENT_SHIFT) & WORD_MASK
    for k in range(w.OPERAND_WORDS):
        s[operand + k] = 0
    s[operand + w.O_FLAGS] = low & WORD_MASK & ~dsd.KIND_MASK
    s[operand + w.O_WORDS] = element
    s[operand + w.O_EXTENT] = (low >> EXTENT_SHIFT) & 0xFFFFFFFF
    if kind in (KIND_FABIN, KIND_FABOUT):
        s[operand + w.O_KIND] = w.FABIN if kind == KIND_FABIN else w.FABOUT
        priority = (high >> PRIORITY_SHIFT) & WORD_MASK
        s[operand + w.O_FLAGS] |= priority << w.PRIORITY_SHIFT
        s[operand + w.O_COLOR] = (low >> COLOR_SHIFT) & WORD_MASK
        s[operand + w.O_QUEUE] = (high >> QUEUE_SHIFT) & WORD_MASK
        s[operand + w.O_TRANSFORM] = (high >> TRANSFORM_SHIFT) & WORD_MASK
        return True
    s[operand + w.O_KIND] = w.MEMORY
    s[operand + w.O_ADDRESS] = (low >> BASE_SHIFT) & WORD_MASK
    if kind == KIND_MEM1D:
        stride = (high >> STRIDE_SHIFT) & WORD_MASK
        s[operand + w.O_DIMS] = 1
        s[operand + w.O_STRIDES] = stride - ((stride & SIGN) << 1)
        return True
    if kind == KIND_CIRCULAR:
        around = (high >> WRAPAROUND_SHIFT) & WORD_MASK
        s[operand + w.O_DIMS] = 2
        s[operand + w.O_EXTENTS] = around
        s[operand + w.O_EXTENTS + 1] = w.NEVER
        s[operand + w.O_STRIDES] = element
        s[operand + w.O_STRIDES + 1] = -(around - 1) * element
        return True
    if kind != KIND_MEM4D:
        return False
    s[operand + w.O_DIMS] = (low >> EXTENT_SHIFT) & WORD_MASK
    s[operand + w.O_EXTENT] = 1
    for dim in range(s[operand + w.O_DIMS]):
        extent = (s[start + EXTENTS4_CELL] >> (16 * dim)) & WORD_MASK
        stride = (s[start + STRIDES4_CELL] >> (16 * dim)) & WORD_MASK
        s[operand + w.O_EXTENTS + dim] = extent
        s[operand + w.O_STRIDES + dim] = stride - ((stride & SIGN) << 1)
        s[operand + w.O_EXTENT] *= extent
    return True


decode_dsd = compiled(decode_words)


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
