"""Builtins about strings, and what the compiler prints or asserts."""

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.builtins.calls import check_number
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.types import Array, Enum, Struct, Type
from openwafer.sdk.csl.values import NOTHING, Comptime, Operand, Value
from openwafer.sdk.program.routing import Direction


def _bytes(sema: Sema, node: ast.Expression) -> bytes:
    value = sema.comptime_value(node, types.COMPTIME_STRING).value
    assert isinstance(value, bytes)
    return value


@builtin("strcat")
def _strcat(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    joined = b"".join(_bytes(sema, argument) for argument in call.arguments)
    return Comptime(types.COMPTIME_STRING, joined)


@builtin("strlen")
def _strlen(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    return Comptime(types.COMPTIME_INT, len(_bytes(sema, *call.arguments)))


@builtin("get_array")
def _get_array(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    text = _bytes(sema, *call.arguments)
    return Comptime(Array((len(text),), types.U8), tuple(text))


@builtin("get_string_from_byte")
def _get_string_from_byte(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    (argument,) = call.arguments
    value = sema.comptime_value(argument, types.U8).value
    assert isinstance(value, int)
    return Comptime(types.COMPTIME_STRING, bytes((value,)))


@builtin("comptime_assert")
def _comptime_assert(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    condition, *message = call.arguments
    if not sema.comptime_value(condition, types.BOOL).value:
        text = f"comptime_assert failed: {sema.string(message[0])}" if message else ""
        sema.fail("assertion", text or "comptime_assert failed", call.span)
    return NOTHING


@builtin("assert")
def _assert(sema: Sema, call: ast.BuiltinCall, expected: Type | None) -> Operand:
    if sema.is_comptime:
        return _comptime_assert(sema, call, expected)
    (argument,) = check_number(sema, call, (1,))
    condition = sema.typed(argument, types.BOOL)
    sema.emit("assert", sema.lower(condition, argument.span))
    return NOTHING


@builtin("comptime_print")
def _comptime_print(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    values = [sema.known(sema.expression(a), a.span) for a in call.arguments]
    sema.in_order()
    sema.printed.append(", ".join(shown(value.type, value.value) for value in values))
    return NOTHING


def shown(kind: Type, value: Value) -> str:
    """A known value as people read it."""
    match kind, value:
        case _, bytes():
            return value.decode("utf-8", "replace")
        case _, bool():
            return "true" if value else "false"
        case Enum(elements=elements), _:
            return next(name for name, number in elements if number == value)
        case types.DIRECTION, int():
            return Direction(value).name
        case Array(element=element), tuple():
            return f"{{{', '.join(shown(element, item) for item in value)}}}"
        case Struct(fields=fields), tuple():
            pairs = zip(fields, value, strict=True)
            texts = (
                shown(f.type, v) if kind.is_tuple else f"{f.name} = {shown(f.type, v)}"
                for f, v in pairs
            )
            return f"{{{', '.join(texts)}}}"
        case _:
            return str(value)
