"""Configuration registers and the random generator."""

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import NOTHING, Comptime, Loaded, Operand, Runtime
from openwafer.sdk.ir.function import Type as IrType


@builtin("set_config", "set_config_unchecked")
def _set_config(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    address = sema.typed(nodes[0], t.U16)
    value = sema.typed(nodes[1], t.U16)
    if sema.is_comptime:
        registers = sema.unrecorded().machine.registers
        registers[_known(sema, call, address)] = _known(sema, call, value)
    else:
        pair = (sema.lower(address, nodes[0].span), sema.lower(value, nodes[1].span))
        sema.emit("write_register", *pair)
    return NOTHING


@builtin("get_config", "get_config_unchecked")
def _get_config(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    address = sema.typed(nodes[0], t.U16)
    if not sema.is_comptime:
        value = sema.emit("read_register", sema.lower(address, call.span), type=IrType.U16)
        return Runtime(t.U16, value)
    number = _known(sema, call, address)
    registers = sema.unrecorded().machine.registers
    if number not in registers:
        message = f"nothing was written to register 0x{number:04x} before"
        sema.fail("unset-register", message, call.span, help="call @set_config first")
    return Comptime(t.U16, registers[number])


def _known(sema: Sema, call: ast.BuiltinCall, operand: Loaded) -> int:
    if not isinstance(operand, Comptime) or not isinstance(operand.value, int):
        sema.fail("not-comptime", "the register's address and value are not known", call.span)
    return operand.value


@builtin("set_active_prng")
def _set_active_prng(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    """The id counts modulo the number of generators, and the model has one in each PE."""
    (node,) = call.arguments
    sema.typed(node, t.U16)
    return NOTHING


@builtin("random16")
def _random(sema: Sema, _call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    return Runtime(t.U16, sema.emit("random", type=IrType.U16))
