"""Variables and pointers that code reads, and that nothing has set."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.types import Pointer
from openwafer.sdk.csl.values import Module, Variable
from openwafer.sdk.ir import function as ir

_Point: TypeAlias = tuple[str, int, bool]
"""A block, an instruction in it, and whether the slot was set on the way there."""


def unset_variables(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about local variables that are read before they are set, on every way there."""
    places = state.tables.places
    for local in state.unset_locals:
        function = state.module.functions.get(local.function)
        read = None if function is None else _read_before_set(function, local.slot)
        if read is not None:
            file, line, _, where = places[read.place].written
            yield Diagnostic(
                Severity.WARNING,
                "csl-unset-variable",
                f"'{local.name}' is read before it has a value",
                local.span,
                (f"read at {file}:{line} ({where})",),
                "give it a value here: on the machine it is what the stack held before",
            )


def pointers_never_set(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about pointers at the top of a file that code follows, and nothing sets."""
    unset = {name: one for name, one in state.variables.items() if _is_unset(one)}
    read = _only_read(state, unset) if unset else []
    places, modules = state.tables.places, list(state.modules.values())
    for variable, one in read:
        number, start = variable.declared
        nodes = modules[number].declarations.values()
        span = next((node.span for node in nodes if node.span.start == start), None)
        file, line, _, where = places[one.place].written
        name = variable.name.rpartition(".")[2]
        if span is not None and not any(_may_set(module, name) for module in modules):
            yield Diagnostic(
                Severity.WARNING,
                "csl-pointer-unset",
                f"'{variable.name}' is a pointer that nothing sets",
                span,
                (f"read at {file}:{line} ({where})",),
                "let it point to a variable before it is followed: pointer = &variable",
            )


def _may_set(module: Module, name: str) -> bool:
    """Whether a file assigns to a name or takes its address, in code that is used or not."""
    return any(name in _changed(node) for node in ast.walk(module.tree))


def _changed(node: ast.Node) -> Iterator[str]:
    """What is assigned to or addressed, and what that is a part of."""
    if isinstance(node, ast.Assign):
        yield from _names(node.target)
    elif isinstance(node, ast.AddressOf):
        yield from _names(node.operand)


def _names(node: ast.Expression) -> Iterator[str]:
    while isinstance(node, ast.Member | ast.Index):
        if isinstance(node, ast.Member):
            yield node.name.text
        node = node.operand
    if isinstance(node, ast.Identifier):
        yield node.name


def _is_unset(variable: Variable) -> bool:
    return isinstance(variable.type, Pointer) and not variable.words


def _only_read(
    state: ImageState, pointers: Mapping[str, Variable]
) -> list[tuple[Variable, ir.Instruction]]:
    """Those that code loads and does nothing else with, each with the first load."""
    exported = {symbol for _, symbol in state.exported_symbols} | state.definitions.keys()
    words = (word for variable in state.variables.values() for word in variable.words)
    known = {word for word in words if type(word) is int}
    loads: dict[str, ir.Instruction] = {}
    others: set[str] = set()
    for function in state.module.functions.values():
        for one in function.instructions:
            for symbol in (arg.symbol for arg in one.args if isinstance(arg, ir.Address)):
                if one.op == "load":
                    loads.setdefault(symbol, one)
                else:
                    others.add(symbol)
    return [
        (pointer, loads[name])
        for name, pointer in pointers.items()
        if name in loads.keys() - others - exported and 2 * pointer.address not in known
    ]


def _read_before_set(function: ir.Function, slot: str) -> ir.Instruction | None:
    """A read of a slot that nothing but its declaration comes before, on every way there."""
    blocks = {block.label: block for block in function.blocks}
    uses = [
        (block.label, index, one)
        for block in function.blocks
        for index, one in enumerate(block.instructions)
        if one.op in ("get", "set") and one.names[0] == slot
    ]
    declared = next(((label, index) for label, index, one in uses if one.op == "set"), None)
    if declared is None:
        return None
    for label, index, one in uses:
        if one.op == "get" and _ways(blocks, slot, declared, (label, index)) == {False}:
            return one
    return None


def _ways(
    blocks: dict[str, ir.Block], slot: str, start: tuple[str, int], end: tuple[str, int]
) -> set[bool]:
    """Whether the slot was set behind its declaration, on the ways that first come to a read."""
    found: set[bool] = set()
    seen: set[_Point] = set()
    waiting: list[_Point] = [(*start, False)]
    while waiting:
        label, index, is_set = waiting.pop()
        if (label, index) == end:
            found.add(is_set)
            continue
        if (label, index, is_set) in seen:
            continue
        seen.add((label, index, is_set))
        one = blocks[label].instructions[index]
        if one.op == "set" and one.names[0] == slot:
            is_set = (label, index) != start
        if index + 1 < len(blocks[label].instructions):
            waiting.append((label, index + 1, is_set))
        else:
            waiting += [(target, 0, is_set) for target in one.names if target in blocks]
    return found
