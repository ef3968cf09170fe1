"""What a name of the source stands for, as a record of the program."""

import struct
from typing import Final

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.analysis import Analysis
from openwafer.sdk.csl.sema.lowering import words_of
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import (
    Cell,
    CellLvalue,
    Comptime,
    MemoryLvalue,
    Operand,
    SlotLvalue,
    freeze,
)
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.debug_info import Home, VariableInfo
from openwafer.source import Span

_PLAIN: Final = frozenset((int, bool, float))
_OF_COMPILER: Final = frozenset((types.TYPE, types.IMPORTED_MODULE, types.VOID))
"""Types whose values are none of a program's."""
_I64: Final = range(-(1 << 63), 1 << 63)


def note_local(analysis: Analysis, name: ast.Name, operand: Operand) -> None:
    """Keep a name of the function that is emitted, from where it stands to its block's end."""
    context, span = analysis.context, name.span
    if context.builder is None or context.is_comptime or not is_value(operand.type):
        return
    extent = span.source, span.start, max(span.end, context.scope.end)
    scope = analysis.tables.place(extent, context.function, *context.expanded)
    found = described(analysis, name.text, operand, scope, span)
    context.builder.function.variables.append(found)


def is_value(kind: Type) -> bool:
    """Whether a name of the type stands for a value, which a type, function or module is not."""
    return kind not in _OF_COMPILER and not isinstance(kind, types.Function)


def described(
    analysis: Analysis, name: str, operand: Operand, scope: int, span: Span
) -> VariableInfo:
    """The record of a name that stands for a value."""
    known, home, slot, content = operand.type, Home.NOWHERE, "", b""
    is_const = not isinstance(operand, SlotLvalue | MemoryLvalue | CellLvalue) or operand.is_const
    match operand:
        case SlotLvalue():
            home, slot = Home.SLOT, operand.slot
        case MemoryLvalue(address=ir.Register(number)) if analysis.context.builder is not None:
            home, slot = analysis.builder.slot_of(number)
        case Comptime(value=value) | CellLvalue(is_const=True, cell=Cell(content=value)):
            found = content_of(analysis, known, value, span)
            if found is not None:
                home, content = Home.CONSTANT, found
        case _:
            pass
    kind = analysis.tables.type(known)
    return VariableInfo(name, kind, home, 0, slot, content, scope, is_const)


def content_of(analysis: Analysis, kind: Type, value: object, span: Span) -> bytes | None:
    """Bytes of a known value as memory would hold them; None for what memory cannot hold."""
    if not _is_plain(value):
        return None
    value = freeze(value)
    match kind, value:
        case types.COMPTIME_INT, int():
            return value.to_bytes(8, "little", signed=True) if value in _I64 else None
        case types.COMPTIME_FLOAT, float():
            return struct.pack("<d", value)
        case types.COMPTIME_STRING, bytes():
            return value
        case _ if kind == types.FIFO or kind in types.DSRS or not types.is_comptime_only(kind):
            words = words_of(analysis, kind, value, span)
            whole = struct.pack(f"<{len(words)}H", *(word & 0xFFFF for word in words))
            return whole[: types.num_bytes(kind)]
        case _:
            return None


def _is_plain(value: object) -> bool:
    """Whether it has numbers only, which all cases that are followed share."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    return type(value) in _PLAIN
