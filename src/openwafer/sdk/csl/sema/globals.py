"""What the names at the top of a file stand for; each is evaluated when first asked for."""

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.analysis import Poisoned
from openwafer.sdk.csl.sema.functions import function_type
from openwafer.sdk.csl.sema.linking import check_abi, check_linked, link_name
from openwafer.sdk.csl.sema.lowering import materialize, words_of
from openwafer.sdk.csl.sema.lvalues import variable_lvalue
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.sema.statements import blank, check_runtime_type, named
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import (
    UNDEFINED,
    Cell,
    CellLvalue,
    Comptime,
    FunctionValue,
    Module,
    Operand,
    thaw,
)
from openwafer.source import Span

_UNINITIALIZED = "only 'var' and 'extern const' variables may be uninitialized"


def find_global(sema: Sema, module: Module, name: str, span: Span) -> Operand:
    """What a module's name stands for."""
    if name in module.globals:
        operand = module.globals[name]
        if operand is None:
            raise Poisoned(*sema.diagnostics[-1:])
        return operand
    if name in module.pending:
        sema.fail(
            "dependency-loop",
            f"the value of '{name}' depends on itself",
            span,
            notes=(" -> ".join((*module.pending[module.pending.index(name) :], name)),),
        )
    module.pending.append(name)
    sema.imports.used.add((module.path, name))
    try:
        module.globals[name] = operand = _evaluate(sema, module, module.declarations[name])
    except OpenwaferError as error:
        sema.report(error)
        module.globals[name] = None
        raise Poisoned(*error.diagnostics) from error
    finally:
        module.pending.pop()
    return operand


def _evaluate(sema: Sema, module: Module, node: ast.Declaration) -> Operand:
    match node:
        case ast.Function():
            function = FunctionValue(node, module)
            return Comptime(function_type(sema, function), function)
        case ast.Variable():
            with sema.in_all_lanes(), sema.in_module(module) as context:
                context.declaring = node.name.text
                return _variable(sema, module, node)
        case _:
            raise AssertionError(node)


def _variable(sema: Sema, module: Module, node: ast.Variable) -> Operand:
    sema.set_place(node.span)
    if node.kind in (ast.VariableKind.PARAM, ast.VariableKind.COLOR):
        return _constant(module, node, _param(sema, module, node))
    kind = None if node.type is None else _type(sema, module, node.type)
    if node.kind is ast.VariableKind.CONST and node.storage is not ast.Storage.EXTERN:
        if node.initializer is None:
            sema.fail("uninitialized", _UNINITIALIZED, node.span)
        lvalue = _constant(module, node, _value(sema, module, node.initializer, kind))
        if node.storage is ast.Storage.EXPORT:
            materialize(sema, lvalue.cell, node.span)
        return lvalue
    return _memory(sema, module, node, kind)


def _param(sema: Sema, module: Module, node: ast.Variable) -> Comptime:
    """The importer's value, or else the default."""
    kind: Type | None = types.COLOR if node.kind is ast.VariableKind.COLOR else None
    if node.type is not None:
        kind = _type(sema, module, node.type)
    given = module.params.get(node.name.text)
    if given is not None:
        return given if kind is None else sema.known(_fitted(sema, given, kind, node), node.span)
    if node.initializer is None:
        sema.fail(
            "uninitialized",
            _UNINITIALIZED,
            node.span,
            notes=(f"param '{node.name.text}' was given no value",),
            help=_remedy_for_param(sema, module, node.name.text),
        )
    return _value(sema, module, node.initializer, kind)


def _type(sema: Sema, module: Module, node: ast.Expression) -> Type:
    if isinstance(node, ast.Identifier):
        return sema.type_of_node(node)
    return sema.recalled(module, id(node), lambda: sema.type_of_node(node))


def _value(sema: Sema, module: Module, node: ast.Expression, kind: Type | None) -> Comptime:
    return sema.recalled(module, (id(node), kind), lambda: sema.comptime_value(node, kind))


def _remedy_for_param(sema: Sema, module: Module, name: str) -> str:
    is_of_layout = sema.layout is not None and not module.prefix
    where = f"--params={name}:VALUE" if is_of_layout else f".{name} where the file is imported"
    return f"pass {where}, or give it a default"


def _fitted(sema: Sema, given: Comptime, kind: Type, node: ast.Variable) -> Operand:
    try:
        return sema.coerce(given, kind, node.span)
    except OpenwaferError as error:
        note = f"the value given for param '{node.name.text}' has type '{given.type}'"
        found = error.diagnostics[0]
        sema.fail(found.code.removeprefix("csl-"), found.message, node.span, (note,), found.help)


def _constant(module: Module, node: ast.Variable, value: Comptime) -> CellLvalue:
    value = named(value, node.name.text)
    name, content = module.prefix + node.name.text, thaw(value.value)
    cell = Cell(name, value.type, content, is_const=True, is_global=True)
    return CellLvalue(value.type, cell, (), is_const=True)


def _memory(sema: Sema, module: Module, node: ast.Variable, kind: Type | None) -> Operand:
    """A variable of the PE."""
    if node.storage is ast.Storage.EXTERN:
        definition = sema.unrecorded().definitions.get(link_name(sema, node))
        if definition is not None and isinstance(definition[1], ast.Variable):
            return _linked(sema, node, kind, *definition)
    if node.initializer is None:
        if kind is None:
            sema.fail(
                "no-type",
                f"variable '{node.name.text}' needs a type or an initializer",
                node.span,
            )
        value = Comptime(kind, UNDEFINED)
    else:
        value = _value(sema, module, node.initializer, kind)
    name = symbol_name(sema, module, node)
    if sema.layout is not None:
        content = blank(value.type) if value.value is UNDEFINED else thaw(value.value)
        cell = Cell(name, value.type, content)
        return CellLvalue(value.type, cell, (), is_const=False)
    check_runtime_type(sema, value.type, node.span)
    if node.storage is not ast.Storage.INTERNAL:
        check_abi(sema, value.type, "an exported variable", node.span)
    _check_fp16(sema, value.type, node.span)
    words = [] if value.value is UNDEFINED else words_of(sema, value.type, value.value, node.span)
    align = 1
    if node.attributes.align is not None:
        align = max(1, sema.integer(node.attributes.align, "an alignment") // 2)
    variable = sema.unrecorded().new_variable(name, value.type, words, align_words=align)
    number = list(sema.unrecorded().modules).index(module.prefix)
    variable.declared = number, node.span.start
    return variable_lvalue(variable, is_const=node.kind is ast.VariableKind.CONST)


def _linked(
    sema: Sema,
    node: ast.Variable,
    kind: Type | None,
    module: Module,
    definition: ast.Declaration,
) -> Operand:
    """The exported variable that an extern one stands for."""
    assert isinstance(definition, ast.Variable)
    lvalue = find_global(sema, module, definition.name.text, node.span)
    if kind is not None:
        check_linked(sema, node.name.text, kind, lvalue.type, node.span)
    return lvalue


def _check_fp16(sema: Sema, kind: Type, span: Span) -> None:
    element = kind.element if isinstance(kind, types.Array) else kind
    is_other = element in types.FLOATS - {types.F32} and str(element) != sema.options.fp16_format
    if is_other:
        sema.fail(
            "fp16-format",
            f"variable of type '{element}' must be comptime-known",
            span,
            notes=(f"the 16-bit float of this program is '{sema.options.fp16_format}'",),
            help=f"compile with --fp16-format={element}, or use @fp16()",
        )


def symbol_name(sema: Sema, module: Module, node: ast.Variable) -> str:
    """Name in the symbol table: exported ones belong to no module."""
    if node.attributes.linkname is not None:
        return sema.string(node.attributes.linkname)
    is_plain = node.storage is not ast.Storage.INTERNAL
    return node.name.text if is_plain else module.prefix + node.name.text
