"""The names of an analysed image, as numbers of the program's tables."""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.lanes import Lanes
from openwafer.sdk.csl.sema.debug_tables import DebugTables
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.lowering import path_offset
from openwafer.sdk.csl.sema.named_values import described, is_value
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.values import (
    Cell,
    CellLvalue,
    Comptime,
    MemoryLvalue,
    Module,
    Operand,
    PointerValue,
    Variable,
)
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.debug_info import (
    NO_NUMBER,
    FunctionInfo,
    Home,
    ImageNames,
    VariableInfo,
)


def names_of(sema: Sema) -> ImageNames:
    """All that was asked for at the top of the files, and the functions of the code."""
    state, tables = sema.image, sema.tables
    scopes: dict[str, int] = {}
    found = [n for module in state.modules.values() for n in _constants(sema, module, scopes)]
    for one in state.variables.values():
        scope, kind = scopes.get(one.name, NO_NUMBER), tables.type(one.type)
        where = Home.MEMORY, one.address, "", b"", scope, not one.is_mutable
        found.append(tables.variable(VariableInfo(one.name, kind, *where)))
    functions = (
        function.once(names_of, lambda one: _function(tables, one))
        for function in state.module.functions.values()
    )
    return ImageNames(tuple(found), tuple(functions))


def _constants(sema: Sema, module: Module, scopes: dict[str, int]) -> Iterator[int]:
    """The names of a file that stand for no memory; the scopes of the others go to `scopes`."""
    source, tables = module.tree.span.source, sema.tables
    for name, operand in module.globals.items():
        node = module.declarations[name]
        if operand is None or not isinstance(node, ast.Variable) or not is_value(operand.type):
            continue
        extent = source, node.name.span.start, len(source.text)
        scope = tables.place(extent, "")
        match operand:
            case MemoryLvalue(address=ir.Address(symbol)):
                scopes.setdefault(symbol, scope)
            case CellLvalue(cell=Cell(variable=Variable(name=symbol))):
                scopes.setdefault(symbol, scope)
            case _:
                settled = _settled(operand)
                value = _key(settled)
                key = module.prefix + name, scope, operand.type, value
                number = None if value is None else tables.known.get(key)
                if number is None:
                    one = described(sema, key[0], settled, scope, node.span)
                    number = tables.variable(_located(sema.image, one, operand))
                    if one.home is Home.CONSTANT:
                        tables.known[key] = number
                yield number


def _key(operand: Operand) -> Hashable:
    """What is equal for equal numbers and descriptors; None where it takes more to tell."""
    match operand:
        case CellLvalue(cell=Cell(content=content)) | Comptime(value=content):
            pass
        case _:
            return None
    if type(content) is list and all(type(item) is int for item in content):
        return tuple(content)
    # Zeros of either sign are equal, and no NaN is.
    return repr(content) if type(content) in (bool, int, float) else None


def _settled(operand: Operand) -> Operand:
    """A number that all cases share, as a plain one."""
    if isinstance(operand, CellLvalue) and type(operand.cell.content) is Lanes:
        lanes = operand.cell.content
        return Comptime(operand.type, lanes.one()) if lanes.is_one() else operand
    return operand


def _located(state: ImageState, one: VariableInfo, operand: Operand) -> VariableInfo:
    """A number that each PE has its own of, and a pointer, whose target has its address by now."""
    if one.home is not Home.NOWHERE or not isinstance(operand, CellLvalue):
        return one
    content = operand.cell.content
    if type(content) is Lanes:
        for number, (value, _) in enumerate(state.parameters):
            if np.array_equal(value.numbers, content.numbers):
                return replace(one, home=Home.PARAMETER, address=number)
    address = _address(content)
    if address is None:
        return one
    return replace(one, home=Home.CONSTANT, content=address.to_bytes(WORD_BYTES, "little"))


def _address(content: object) -> int | None:
    """The byte that a known pointer points to."""
    match content:
        case PointerValue(target=Variable(address=address), offset=offset):
            return WORD_BYTES * address + offset & 0xFFFF
        case PointerValue(target=Cell(variable=Variable(address=address)) as cell, path=path):
            return WORD_BYTES * address + path_offset(cell.type, path) + content.offset & 0xFFFF
        case _:
            return None


def _function(tables: DebugTables, function: ir.Function) -> int:
    """Number of a function. A local that has several homes, as in unrolled loops, has none."""
    known: dict[Hashable, VariableInfo] = {}
    for one in function.variables:
        other = known.setdefault((one.name, one.scope), one)
        if other != one:
            known[one.name, one.scope] = _nowhere(one)
    variables = tuple(map(tables.variable, known.values()))
    return tables.function(FunctionInfo(function.name, function.place, function.result, variables))


def _nowhere(one: VariableInfo) -> VariableInfo:
    return VariableInfo(one.name, one.type, Home.NOWHERE, scope=one.scope, is_const=one.is_const)


def in_common(tables: DebugTables, left: ImageNames, right: ImageNames) -> ImageNames:
    """The names of an image that stands for two: a constant that differs is nowhere."""
    if left == right:
        return left
    functions = itertools.starmap(
        lambda one, other: _common_function(tables, one, other),
        zip(left.functions, right.functions, strict=True),
    )
    variables = _common(tables, left.variables, right.variables)
    return ImageNames(variables, tuple(functions), left.frames)


def _common_function(tables: DebugTables, left: int, right: int) -> int:
    if left == right:
        return left
    one, other = tables.functions[left], tables.functions[right]
    return tables.function(replace(one, variables=_common(tables, one.variables, other.variables)))


def _common(tables: DebugTables, left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    others = set(right)
    return tuple(
        number if number in others else tables.variable(_nowhere(tables.variables[number]))
        for number in left
    )
