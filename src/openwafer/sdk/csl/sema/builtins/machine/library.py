"""Private builtins that the standard library is written with: `@openwafer_<operation>`."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.arguments import wrong_type
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.symbolic import noted
from openwafer.sdk.csl.values import NOTHING, Comptime, Operand, Runtime
from openwafer.sdk.ir.arithmetic import function
from openwafer.sdk.ir.function import Type as IrType
from openwafer.sdk.ir.numbers import decode, encode
from openwafer.sdk.ir.operations import MATH_FUNCTIONS

_FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "pow": math.pow,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "abs": abs,
}


@builtin("openwafer_open_stream")
def _open_stream(sema: Sema, _call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    sema.emit("open_stream")
    return NOTHING


@builtin("openwafer_timestamp")
def _timestamp(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    word = sema.emit("timestamp", type=IrType.U16, names=(str(sema.integer(node)),))
    return Runtime(t.U16, word)


@builtin("openwafer_timestamp_control")
def _timestamp_control(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    sema.emit("timestamp_control", names=(sema.string(node),))
    return NOTHING


@builtin("openwafer_coordinate")
def _coordinate(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    name = sema.string(node)
    return Runtime(t.U16, sema.emit("coordinate", type=IrType.U16, names=(name,)))


@builtin("openwafer_print")
def _print(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    """Write 16-bit characters, first character's pointer and their number."""
    node, length_node = call.arguments
    pointer = sema.lower(sema.expression(node), node.span)
    sema.emit("print", pointer, sema.lower(sema.typed(length_node, t.U16), length_node.span))
    return NOTHING


@builtin("openwafer_seed_random")
def _seed_random(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    sema.emit("seed_random", sema.lower(sema.typed(node, t.U32), node.span))
    return NOTHING


@builtin("openwafer_type_kind")
def _type_kind(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    """A word for what a type is."""
    (node,) = call.arguments
    kind = sema.type_of_node(node)
    match kind:
        case t.Int(is_signed=is_signed):
            word = "signed" if is_signed else "unsigned"
        case t.Array() | t.Pointer() | t.Struct() | t.Enum() | t.Function():
            word = type(kind).__name__.lower()
        case _ if kind in t.FLOATS:
            word = "float"
        case _:
            groups = {"dsd": t.DSDS | {t.FIFO}, "dsr": t.DSRS, "id": t.IDS}
            word = next((name for name, group in groups.items() if kind in group), str(kind))
    return Comptime(t.COMPTIME_STRING, word.encode())


@builtin("openwafer_type_size")
def _type_size(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    """A size of a type: its `bits`, what it takes in `words` or `bytes`, or its alignment."""
    what, node = call.arguments
    kind = sema.type_of_node(node)
    if t.is_comptime_only(kind):
        sema.fail("comptime-only", f"type '{kind}' has no size", node.span)
    sizes = {
        "bits": _bits,
        "bytes": t.num_bytes,
        "words": t.num_words,
        "align_bytes": t.align_bytes,
        "align_words": t.align_words,
    }
    return Comptime(t.COMPTIME_INT, sizes[sema.string(what)](kind))


def _bits(kind: t.Type) -> int:
    try:
        return t.num_bits(kind)
    except KeyError:
        return 8 * t.num_bytes(kind)


@builtin("openwafer_math")
def _math(sema: Sema, call: ast.BuiltinCall, expected: t.Type | None) -> Operand:
    """`@openwafer_math("sqrt", x)`: in the type of x, rounded once; known where x is."""
    nodes = call.arguments
    name = sema.string(nodes[0])
    if name not in MATH_FUNCTIONS:
        sema.fail("unknown-function", f"no function '{name}' of the numbers", nodes[0].span)
    values = [sema.expression(node, expected) for node in nodes[1:]]
    kind = next((v.type for v in values if v.type in t.FLOATS), values[0].type)
    if not t.is_float(kind):
        wrong_type(sema, nodes[1], "a float", values[0])
    values = [sema.coerce(v, kind, node.span) for v, node in zip(values, nodes[1:], strict=True)]
    if all(isinstance(value, Comptime) for value in values):
        numbers = [value.value for value in values if isinstance(value, Comptime)]
        floats = [number for number in numbers if isinstance(number, float)]
        return Comptime(kind, noted(_known, name, kind, *floats))
    lowered = (sema.lower(v, node.span) for v, node in zip(values, nodes[1:], strict=True))
    return Runtime(kind, sema.emit("math", *lowered, type=t.ir_type(kind), names=(name,)))


def _known(name: str, kind: t.Type, *floats: float) -> float:
    if kind != t.COMPTIME_FLOAT:
        ir_kind = t.ir_type(kind)
        bits = function(name, [encode(number, ir_kind) for number in floats], ir_kind)
        return float(decode(bits, ir_kind))
    try:
        return float(_FUNCTIONS[name](*floats))
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan
