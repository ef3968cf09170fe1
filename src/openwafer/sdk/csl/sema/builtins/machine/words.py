"""16-bit words of descriptors that are known or computed by the PE."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.types import Type, ir_type
from openwafer.sdk.csl.values import Comptime, Operand, Runtime
from openwafer.sdk.ir.function import Constant, Value
from openwafer.sdk.ir.function import Type as IrType
from openwafer.source import Span

Word: TypeAlias = int | Value
"""A number modulo 2^16, or an IR value of type u16."""

WORD_MASK = 0xFFFF


def as_word(sema: Sema, operand: Operand, span: Span) -> Word:
    """An integer or id as a word, or the word that a pointer points to."""
    if isinstance(operand, Comptime) and isinstance(operand.value, int):
        return operand.value & WORD_MASK
    value = sema.lower(operand, span)
    if value.type is IrType.U16:
        return value
    if value.type is IrType.I8:
        value = sema.emit("cast", value, type=IrType.I16)
    if value.type is IrType.PTR:
        return sema.emit("word_of", value, type=IrType.U16)
    is_wide = value.type is not IrType.I16
    return sema.emit("cast" if is_wide else "bitcast", value, type=IrType.U16)


def plus(sema: Sema, left: Word, right: Word) -> Word:
    """The sum."""
    if isinstance(left, int) and isinstance(right, int):
        return (left + right) & WORD_MASK
    if right == 0:
        return left
    if left == 0:
        return right
    return sema.emit("add", value_of(left), value_of(right), type=IrType.U16)


def times(sema: Sema, left: Word, right: Word) -> Word:
    """The product."""
    if isinstance(left, int) and isinstance(right, int):
        return (left * right) & WORD_MASK
    if right == 1:
        return left
    if left == 0 or right == 0:
        return 0
    return sema.emit("mul", value_of(left), value_of(right), type=IrType.U16)


def halved(sema: Sema, word: Word, twice_the_shift: Word) -> Word:
    """A signed word shifted to the right by half of a number of bits."""
    if isinstance(word, int) and isinstance(twice_the_shift, int):
        return (word - (word >> 15 << 16) >> (twice_the_shift >> 1)) & WORD_MASK
    shift = sema.emit("shr", value_of(twice_the_shift), value_of(1), type=IrType.U16)
    signed = sema.emit("bitcast", value_of(word), type=IrType.I16)
    return sema.emit("bitcast", sema.emit("shr", signed, shift, type=IrType.I16), type=IrType.U16)


def bit(sema: Sema, word: Word, number: int) -> Word:
    """One bit, as 0 or 1."""
    if isinstance(word, int):
        return word >> number & 1
    shifted = sema.emit("shr", word, value_of(number), type=IrType.U16)
    return sema.emit("and", shifted, value_of(1), type=IrType.U16)


def value_of(word: Word) -> Value:
    """The word as an IR value."""
    return Constant(word, IrType.U16) if isinstance(word, int) else word


def descriptor(sema: Sema, kind: Type, words: Sequence[Word]) -> Comptime | Runtime:
    """A DSD of that type made of its words."""
    known = tuple(word if isinstance(word, int) else 0 for word in words)
    unknown = {index: word for index, word in enumerate(words) if not isinstance(word, int)}
    return replace(sema, Comptime(kind, known), unknown)


def word_of(sema: Sema, dsd: Operand, index: int) -> Word:
    """One word of a DSD."""
    if isinstance(dsd, Comptime) and isinstance(dsd.value, tuple):
        word: int = dsd.value[index]
        return word
    assert isinstance(dsd, Runtime)
    return sema.emit("dsd_get", dsd.value, type=IrType.U16, names=(str(index),))


def replace(sema: Sema, dsd: Operand, words: Mapping[int, Word]) -> Comptime | Runtime:
    """The DSD with other words under some numbers."""
    if isinstance(dsd, Comptime) and isinstance(dsd.value, tuple):
        known = list(dsd.value)
        for index, word in words.items():
            known[index] = word if isinstance(word, int) else known[index]
        words = {index: word for index, word in words.items() if not isinstance(word, int)}
        if not words:
            return Comptime(dsd.type, tuple(known))
        value: Value = Constant(tuple(known), ir_type(dsd.type))
    else:
        assert isinstance(dsd, Runtime)
        value = dsd.value
    for index, word in words.items():
        kind = ir_type(dsd.type)
        value = sema.emit("dsd_set", value, value_of(word), type=kind, names=(str(index),))
    return Runtime(dsd.type, value)
