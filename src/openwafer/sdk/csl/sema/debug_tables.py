"""Tables of what a program's source says, filled while its images are analysed.

A number that was given stays: the bodies that images have in common name places and types by it.
"""

from collections.abc import Hashable
from typing import Final, TypeVar

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.types import Type
from openwafer.sdk.program.debug_info import (
    NO_NUMBER,
    FieldInfo,
    FunctionInfo,
    Place,
    TypeInfo,
    TypeKind,
    VariableInfo,
)
from openwafer.source import SourceText

_WORD_BITS: Final = 8 * WORD_BYTES
_WIDE_BYTES: Final = 8
"""What a number of the compiler takes, which no PE holds."""
_KINDS: Final[dict[Type, TypeKind]] = {
    t.BOOL: TypeKind.BOOL,
    t.FIFO: TypeKind.FIFO,
    t.DIRECTION: TypeKind.ID,
    t.COMPTIME_INT: TypeKind.INT,
    t.COMPTIME_FLOAT: TypeKind.FLOAT,
    t.COMPTIME_STRING: TypeKind.TEXT,
    **dict.fromkeys(t.FLOATS, TypeKind.FLOAT),
    **dict.fromkeys(t.IDS, TypeKind.ID),
    **dict.fromkeys(t.DSDS, TypeKind.DSD),
    **dict.fromkeys(t.DSRS, TypeKind.DSR),
}
_OWN_BYTES: Final[dict[Type, int]] = {
    t.COMPTIME_INT: _WIDE_BYTES,
    t.COMPTIME_FLOAT: _WIDE_BYTES,
    t.COMPTIME_STRING: 0,
    t.VOID: 0,
}


_Record = TypeVar("_Record", VariableInfo, FunctionInfo)


class DebugTables:
    """Each record once; attributes list them by their numbers.

    Attributes:
        known: numbers of constants, by what is found sooner than their records.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.types: list[TypeInfo] = []
        self.variables: list[VariableInfo] = []
        self.functions: list[FunctionInfo] = []
        self.known: dict[Hashable, int] = {}
        self._numbers: dict[VariableInfo | FunctionInfo, int] = {}
        self._places: dict[Hashable, int] = {}
        self._types: dict[Type, int] = {}

    def place(
        self,
        extent: tuple[SourceText, int, int],
        function: str,
        inlined: str = "",
        call: int = NO_NUMBER,
    ) -> int:
        """Number of a place; `extent` is its source and the offsets of its begin and end."""
        source, start, end = extent
        key = source.name, start, end, function, inlined, call
        number = self._places.get(key)
        if number is None:
            number = self._places[key] = len(self.places)
            first, last = source.position(start), source.position(end)
            where = source.name, first.line, first.column, function
            self.places.append(Place(*where, last.line, last.column, inlined, call))
        return number

    def type(self, kind: Type) -> int:
        """Number of a type."""
        number = self._types.get(kind)
        if number is None:
            found = self._described(kind)
            number = self._types[kind] = len(self.types)
            self.types.append(found)
        return number

    def variable(self, one: VariableInfo) -> int:
        """Number of a variable."""
        return self._number(self.variables, one)

    def function(self, one: FunctionInfo) -> int:
        """Number of a function."""
        return self._number(self.functions, one)

    def _number(self, table: list[_Record], one: _Record) -> int:
        number = self._numbers.setdefault(one, len(table))
        if number == len(table):
            table.append(one)
        return number

    def _described(self, kind: Type) -> TypeInfo:
        name = str(kind)
        match kind:
            case t.Int(is_signed=is_signed):
                return TypeInfo(TypeKind.INT, name, t.num_bytes(kind), is_signed)
            case t.Pointer(element=element):
                return TypeInfo(TypeKind.POINTER, name, WORD_BYTES, element=self.type(element))
            case t.Function():
                return TypeInfo(TypeKind.FUNCTION, name, WORD_BYTES)
            case t.Array(dims=dims, element=element):
                inner = self.type(element)
                return TypeInfo(TypeKind.ARRAY, name, t.num_bytes(kind), element=inner, shape=dims)
            case t.Enum(tag=tag, elements=members):
                inner, size = self.type(tag), t.num_bytes(kind)
                return TypeInfo(TypeKind.ENUM, name, size, element=inner, members=members)
            case t.Struct(is_union=is_union):
                own = TypeKind.UNION if is_union else TypeKind.STRUCT
                return TypeInfo(own, name, t.num_bytes(kind), fields=self._fields(kind))
            case _:
                size = _OWN_BYTES[kind] if kind in _OWN_BYTES else t.num_bytes(kind)
                is_signed = kind == t.COMPTIME_INT
                return TypeInfo(_KINDS.get(kind, TypeKind.OTHER), name, size, is_signed)

    def _fields(self, kind: t.Struct) -> tuple[FieldInfo, ...]:
        if kind.is_packed:
            offsets = [(t.bit_offset(kind, i), t.num_bits(f.type)) for i, f in _numbered(kind)]
        else:
            offsets = [
                (_WORD_BITS * t.field_offset(kind, i), 8 * t.num_bytes(f.type))
                for i, f in _numbered(kind)
            ]
        pairs = zip(kind.fields, offsets, strict=True)
        return tuple(FieldInfo(f.name, self.type(f.type), *offset) for f, offset in pairs)


def _numbered(kind: t.Struct) -> list[tuple[int, t.Field]]:
    return list(enumerate(kind.fields))
