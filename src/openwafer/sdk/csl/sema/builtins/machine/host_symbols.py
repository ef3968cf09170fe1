"""Builtins that show a PE's variables and functions to the host."""

from typing import NoReturn

from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.arguments import wrong_type
from openwafer.sdk.csl.sema.builtins.machine.placement import fail_without_rectangle
from openwafer.sdk.csl.sema.builtins.machine.structs import known_struct
from openwafer.sdk.csl.sema.functions import function_entry
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import (
    NOTHING,
    Cell,
    Comptime,
    FunctionValue,
    Operand,
    PointerValue,
    Variable,
)
from openwafer.sdk.ir.function import Address, Constant
from openwafer.sdk.ir.function import Type as IrType
from openwafer.sdk.program.program import HostName


@builtin("export_symbol")
def _export_symbol(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    nodes = call.arguments
    name = sema.string(nodes[1]) if len(nodes) > 1 else _name_of(nodes[0])
    lvalue = sema.lvalue(nodes[0])
    advertised = _advertised(sema, call, name)
    if name in dict((*sema.image.exported_symbols, *sema.image.exported_functions)):
        help_text = "export it once, or give the other one a name: @export_symbol(other, NAME)"
        sema.fail("export-twice", f"'{name}' is exported already", call.span, help=help_text)
    if isinstance(lvalue, Comptime) and isinstance(lvalue.value, FunctionValue):
        _check_function(sema, call, advertised, lvalue)
        entry = function_entry(sema, lvalue.value, nodes[0].span)
        sema.unrecorded().exported_functions.append((name, entry))
    else:
        _check_variable(sema, call, advertised, lvalue.type)
        sema.unrecorded().exported_symbols.append((name, _symbol(sema, nodes[0], lvalue)))
    return NOTHING


def _name_of(node: ast.Expression) -> str:
    return node.name.text if isinstance(node, ast.Member) else node.span.text


def _symbol(sema: Sema, node: ast.Expression, lvalue: Operand) -> str:
    pointer = sema.address_of(lvalue, node.span)
    target = None
    if isinstance(pointer, Comptime) and isinstance(pointer.value, PointerValue):
        sema.word_address(pointer, node.span)
        target = pointer.value.target
    variable = target.variable if isinstance(target, Cell) else target
    if not isinstance(variable, Variable):
        wrong_type(sema, node, "a global variable or a function", lvalue)
    return variable.name


def _advertised(sema: Sema, call: ast.BuiltinCall, name: str) -> HostName | None:
    """What the layout says of a name; None for a file that has no layout."""
    surroundings = sema.unrecorded().surroundings
    if surroundings is None:
        return None
    names = surroundings.names
    if name not in names:
        known = ", ".join(sorted(names)) or "none"
        sema.fail(
            "not-exported",
            f"no name '{name}' was exported in the layout",
            call.span,
            notes=(f"names: {known}",),
            help=f'add @export_name("{name}", ...) to the layout block',
        )
    return names[name]


def _check_variable(sema: Sema, call: ast.BuiltinCall, name: HostName | None, kind: t.Type) -> None:
    if name is not None and (name.inputs is not None or _plain(name.type) != _plain(str(kind))):
        is_function = name.inputs is not None
        there = f"fn({_inputs(name)}) {name.type}" if is_function else name.type
        _fail_mismatch(sema, call, name, there, kind)


def _plain(kind: str) -> str:
    return kind.replace("const ", "")


def _check_function(
    sema: Sema, call: ast.BuiltinCall, name: HostName | None, function: Comptime
) -> None:
    kind = function.type
    if name is None or not isinstance(kind, t.Function):
        return
    have = [str(parameter) for parameter in kind.parameters]
    want = None if name.inputs is None else [type_name for _, type_name in name.inputs]
    if have != want or str(kind.result) != name.type:
        there = name.type if want is None else f"fn({_inputs(name)}) {name.type}"
        _fail_mismatch(sema, call, name, there, kind)


def _inputs(function: HostName) -> str:
    return ", ".join(kind for _, kind in function.inputs or ())


def _fail_mismatch(
    sema: Sema, call: ast.BuiltinCall, name: HostName, there: str, here: t.Type
) -> NoReturn:
    is_array = isinstance(here, t.Array)
    example = f"var {name.name}_ptr: {there} = &{name.name};"
    sema.fail(
        "export-mismatch",
        f"exported symbol type mismatch: '{name.name}' is '{there}' in the layout, '{here}' here",
        call.span,
        help=f"export a pointer to the array: {example}" if is_array else "",
    )


@builtin("get_symbol_id")
def _get_symbol_id(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    name = _advertised(sema, call, _name_of(node))
    if name is None:
        sema.fail("not-exported", f"'{node.span.text}' is not advertised", call.span)
    return Comptime(t.U16, name.id)


@builtin("get_symbol_value")
def _get_symbol_value(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    kind_node, node = call.arguments
    kind = sema.type_of_node(kind_node)
    return _by_id(sema, call, node, kind, kind)


@builtin("get_tensor_ptr")
def _get_tensor_ptr(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    return _by_id(sema, call, node, t.Pointer(t.U16, is_many=True), None)


def _by_id(
    sema: Sema,
    call: ast.BuiltinCall,
    node: ast.Expression,
    result: t.Type,
    exported: t.Type | None,
) -> Operand:
    """Value of the variable that an id stands for; `exported` None takes every pointer."""
    found = sema.new_slot(result, "advertised")
    given = sema.lower(sema.typed(node, t.U16), node.span)
    end = sema.new_block("advertised")
    for name, symbol in sema.unrecorded().exported_symbols:
        variable = sema.unrecorded().variables[symbol]
        is_pointer = isinstance(variable.type, t.Pointer) and variable.type.is_many
        advertised = _advertised(sema, call, name)
        if advertised is None or not (variable.type == exported if exported else is_pointer):
            continue
        number = Constant(advertised.id, IrType.U16)
        this, other = sema.new_block("this"), sema.new_block("other")
        sema.branch(sema.emit("eq", given, number, type=IrType.BOOL), this, other)
        sema.enter(this)
        value = sema.emit("load", Address(symbol), type=t.ir_type(result))
        sema.emit("set", value, names=(found.slot,))
        sema.jump(end)
        sema.enter(other)
    sema.jump(end)
    sema.enter(end)
    return sema.load(found, call.span)


@builtin("has_exported_tensors")
def _has_exported_tensors(sema: Sema, _call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    return Comptime(t.BOOL, bool(sema.unrecorded().exported_symbols))


@builtin("get_rectangle")
def _get_rectangle(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    surroundings = sema.unrecorded().surroundings
    rectangle = sema.layout.rectangle if sema.layout is not None else None
    if rectangle is None and surroundings is not None:
        rectangle = surroundings.rectangle
    if rectangle is None:
        fail_without_rectangle(sema, call)
    inner = {"fabric": _size(rectangle.fabric), "offsets": _size(rectangle.offset)}
    width, height = rectangle.size
    return known_struct({"width": _u16(width), "height": _u16(height), **inner})


def _u16(number: int) -> Comptime:
    return Comptime(t.U16, number)


def _size(pair: tuple[int, int]) -> Comptime:
    return known_struct({"width": _u16(pair[0]), "height": _u16(pair[1])})
