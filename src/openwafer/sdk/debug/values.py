"""Values as CSL would write them, from the bytes that a PE has of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Final, TypeAlias

import numpy as np

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.numbers import decode, encode
from openwafer.sdk.program.debug_info import DebugInfo, TypeInfo, TypeKind
from openwafer.sdk.program.descriptor import (
    KIND_MASK,
    NO_COLOR,
    WORD_BASE,
    WORD_COLOR,
    WORD_KIND,
    DsdKind,
    extent_of,
)

Number: TypeAlias = bool | int | float
Read: TypeAlias = Callable[[int, int], bytes]
"""Gives bytes of the PE's memory: from an address on, so many."""

MOST_SHOWN: Final = 16
"""Elements of an array that are shown."""
_NUMBERS: Final = (TypeKind.BOOL, TypeKind.INT, TypeKind.FLOAT, TypeKind.ID, TypeKind.POINTER)


@dataclass(frozen=True)
class Value:
    """Bytes of a type.

    Attributes:
        type: number in the program's table.
        address: byte address in the PE's memory; None for what lies nowhere there.
    """

    type: int
    content: bytes = field(repr=False)
    address: int | None = None


class Values:
    """Takes values of a program apart; `read` is of the PE that they are of."""

    def __init__(self, debug: DebugInfo, functions: tuple[str, ...], read: Read) -> None:
        self._debug = debug
        self._functions = functions
        self._read = read

    def again(self, value: Value) -> Value:
        """The value that is there now."""
        if value.address is None:
            return value
        return self._at(value.type, value.address, len(value.content))

    def type_of(self, value: Value) -> TypeInfo:
        """Its type."""
        return self._debug.types[value.type]

    def number(self, value: Value) -> Number:
        """A number, bool, id, pointer or member of an enumeration; OpenwaferError for others."""
        kind = self.type_of(value)
        if kind.kind is TypeKind.ENUM:
            return self.number(Value(kind.element, value.content))
        if kind.kind not in _NUMBERS:
            raise error(
                "debug-no-number",
                f"a value of type {kind.name} is no number",
                help="name an element or a field of it: a[0], s.count",
            )
        bits = int.from_bytes(value.content, "little")
        match kind.kind:
            case TypeKind.BOOL:
                return bits != 0
            case TypeKind.FLOAT:
                return decode(bits, Type(kind.name))
            case TypeKind.INT:
                return int.from_bytes(value.content, "little", signed=kind.is_signed)
            case _:
                return bits

    def content(self, value: Value, number: Number) -> bytes:
        """The bytes of a number of a value's type. Raises OpenwaferError where it does not fit."""
        kind, size = self.type_of(value), len(value.content)
        if kind.kind is TypeKind.ENUM:
            return self.content(Value(kind.element, value.content), number)
        self.number(value)
        try:
            if kind.kind is TypeKind.FLOAT:
                return encode(float(number), Type(kind.name)).to_bytes(size, "little")
            if number != int(number):
                raise OverflowError
            return int(number).to_bytes(size, "little", signed=kind.is_signed)
        except OverflowError as cause:
            raise error("debug-no-fit", f"{number} is no {kind.name}") from cause

    def parts(self, value: Value) -> list[tuple[str, Callable[[], Value]]]:
        """Elements, fields, or what a pointer points to: how each is written, and its value."""
        kind = self.type_of(value)
        if kind.kind is TypeKind.ARRAY:
            places = (", ".join(map(str, at)) for at in np.ndindex(*kind.shape))
            return [
                (f"[{place}]", partial(self.element, value, number))
                for number, place in enumerate(places)
            ]
        if kind.kind in (TypeKind.STRUCT, TypeKind.UNION):
            return [(f".{one.name}", partial(self.field, value, one.name)) for one in kind.fields]
        if kind.kind is TypeKind.POINTER and kind.element >= 0:
            return [(".*", partial(self.pointed, value))]
        return []

    def field(self, value: Value, name: str) -> Value:
        """A field of a struct, also through a pointer. Raises OpenwaferError for no such one."""
        kind = self.type_of(value)
        if kind.kind is TypeKind.POINTER:
            return self.field(self.pointed(value), name)
        found = [one for one in kind.fields if one.name == name]
        if not found:
            names = ", ".join(one.name for one in kind.fields) or "none"
            raise error("debug-no-field", f"{kind.name} has no field {name!r}; its fields: {names}")
        (one,) = found
        bits = int.from_bytes(value.content, "little") >> one.bit_offset & (1 << one.num_bits) - 1
        is_at_byte = one.bit_offset % 8 == 0 and value.address is not None
        address = value.address + one.bit_offset // 8 if is_at_byte and value.address else None
        return Value(one.type, bits.to_bytes(-(-one.num_bits // 8), "little"), address)

    def element(self, value: Value, index: int) -> Value:
        """An element of an array, by its place in memory, or of what a pointer points to."""
        kind = self.type_of(value)
        size = self._debug.types[kind.element].num_bytes if kind.element >= 0 else 0
        if kind.kind is TypeKind.POINTER and size:
            return self._at(kind.element, int(self.number(value)) + index * size, size)
        num = prod(kind.shape)
        if kind.kind is not TypeKind.ARRAY or not 0 <= index < num:
            raise error(
                "debug-no-element",
                f"{kind.name} has no element {index}",
                help=f"give a number from 0 to {num - 1}" if kind.shape else "",
            )
        size = len(value.content) // num
        begin = None if value.address is None else value.address + index * size
        return Value(kind.element, value.content[index * size : (index + 1) * size], begin)

    def pointed(self, value: Value) -> Value:
        """What a pointer points to. Raises OpenwaferError for what is none."""
        kind = self.type_of(value)
        if kind.kind is not TypeKind.POINTER or kind.element < 0:
            raise error("debug-no-pointer", f"{kind.name} is no pointer to something known")
        size = self._debug.types[kind.element].num_bytes
        return self._at(kind.element, int(self.number(value)), size)

    def _at(self, kind: int, address: int, size: int) -> Value:
        return Value(kind, self._read(address, size), address)

    def text(self, value: Value) -> str:
        """It, as CSL would write it; long arrays in part."""
        kind = self.type_of(value)
        match kind.kind:
            case TypeKind.ARRAY:
                return self._array(value, list(kind.shape))
            case TypeKind.STRUCT | TypeKind.UNION:
                parts = (
                    f".{one.name} = {self.text(self.field(value, one.name))}" for one in kind.fields
                )
                return f".{{ {', '.join(parts)} }}"
            case TypeKind.ENUM:
                number = self.number(value)
                names = (name for name, known in kind.members if known == number)
                return next((f"{kind.name}.{name}" for name in names), str(number))
            case TypeKind.POINTER:
                return f"0x{int.from_bytes(value.content, 'little'):04x}"
            case TypeKind.FUNCTION:
                number = int.from_bytes(value.content, "little")
                return self._functions[number] if number < len(self._functions) else f"fn {number}"
            case TypeKind.TEXT:
                return repr(value.content.decode("utf-8", "replace"))
            case TypeKind.DSD:
                return _dsd(value.content)
            case TypeKind.BOOL:
                return str(self.number(value)).lower()
            case TypeKind.FLOAT:
                return f"{self.number(value):.9g}"
            case _:
                return str(int.from_bytes(value.content, "little", signed=kind.is_signed))

    def _array(self, value: Value, shape: list[int]) -> str:
        """Rows in braces, each with its first elements."""
        num = prod(shape)
        size = len(value.content) // num if num else 0
        element = self.type_of(value).element

        def rows(begin: int, dims: list[int]) -> Iterator[str]:
            inner = prod(dims[1:])
            for index in range(min(dims[0], MOST_SHOWN)):
                first = begin + index * inner
                if len(dims) > 1:
                    yield f"{{ {', '.join(rows(first, dims[1:]))} }}"
                else:
                    yield self.text(Value(element, value.content[first * size :][:size]))
            if dims[0] > MOST_SHOWN:
                yield f"... {dims[0]} in all"

        return f"{{ {', '.join(rows(0, shape))} }}"


def _dsd(content: bytes) -> str:
    words = [
        int.from_bytes(content[at : at + WORD_BYTES], "little")
        for at in range(0, len(content), WORD_BYTES)
    ]
    kind = DsdKind(words[WORD_KIND] & KIND_MASK)
    told = f"{kind.name.lower()}_dsd, extent {extent_of(words)}"
    if kind in (DsdKind.FABIN, DsdKind.FABOUT):
        color = words[WORD_COLOR]
        return told if color == NO_COLOR else f"{told}, color {color}"
    return f"{told}, from 0x{WORD_BYTES * words[WORD_BASE]:04x}"
