"""Values that code reads and nothing gives, or that it gives to what never changes."""

from collections.abc import Iterator, Mapping
from typing import Final

from openwafer.diagnostics import Diagnostic
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.imports import LIBRARY
from openwafer.sdk.csl.lint.checked import CheckedImage, Point, known, leads_to, warning
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.types import Pointer
from openwafer.sdk.csl.values import Module, Variable
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.descriptor import WORD_BASE, DsdKind

_MOVES: Final = frozenset(("mov16", "mov32", "fmovh", "fmovs"))


def constants_written(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about known destinations that begin in an array which was declared const."""
    operations = image.code.get("vector", ())
    constants = {
        word: one.name
        for one in (image.state.variables.values() if operations else ())
        if not one.is_mutable
        for word in range(one.address, one.address + max(1, len(one.words)))
    }
    for one in operations:
        name = constants.get(_destination(one), "")
        if name:
            message = f"@{one.names[0]} writes to '{name.rpartition('.')[2]}', which is a constant"
            remedy = "declare it var, or write to another array"
            yield image.warning_of(one, "constant-written", message, remedy)


def moves_of_nothing(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about known arrays that are moved onto themselves."""
    for one in image.code.get("vector", ()):
        if one.names[0] in _MOVES and _destination(one) >= 0 and one.args[0] == one.args[1]:
            message = f"@{one.names[0]} moves an array onto itself, which changes nothing"
            yield image.warning_of(one, "move-unused", message, "another descriptor may be meant")


def _destination(one: ir.Instruction) -> int:
    """First word of a known destination in memory, or -1."""
    return next((words[WORD_BASE] for words in known(one.args[:1], DsdKind.MEM1D)), -1)


def clock_never_enabled(image: CheckedImage) -> Iterator[Diagnostic]:
    """A warning where code asks `<time>` for the clock, and nothing in the image starts it."""
    code = image.code
    is_started = any("enable" in one.names for one in code.get("timestamp_control", ()))
    if image.state.machine.registers or "write_register" in code or is_started:
        return
    reading = tuple(f"{prefix}get_timestamp" for prefix in _clocks(image.state))
    for one in code.get("call", ()):
        if one.names[0].startswith(reading):
            yield warning(
                "clock-stopped",
                "the clock is read and never started: it stays where it is",
                None,
                "call enable_tsc() of <time> before the first reading",
                f"read at {image.place_of(one)}",
            )
            return


def _clocks(state: ImageState) -> Iterator[str]:
    """Prefixes of the imports of `<time>` in the program's own files."""
    for prefix, module in state.modules.items():
        importer = prefix.rpartition(".")[0].rpartition(".")
        own = state.modules["".join(importer[:2])]
        if module.path == LIBRARY / "time.csl" and not own.path.is_relative_to(LIBRARY):
            yield prefix


def unset_variables(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about local variables that are read before they are set, on every way there."""
    for local in image.state.unset_locals:
        function = image.state.module.functions.get(local.function)
        read = None if function is None else _read_before_set(function, local.slot)
        if read is not None:
            yield warning(
                "unset-variable",
                f"'{local.name}' is read before it has a value",
                local.span,
                "give it a value here: on the machine it is what the stack held before",
                f"read at {image.place_of(read)}",
            )


def pointers_never_set(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about pointers at the top of a file that code follows, and nothing sets."""
    unset = {name: one for name, one in image.state.variables.items() if _is_unset(one)}
    modules = list(image.state.modules.values())
    for variable, one in _only_read(image, unset) if unset else ():
        number, start = variable.declared
        nodes = modules[number].declarations.values()
        span = next((node.span for node in nodes if node.span.start == start), None)
        name = variable.name.rpartition(".")[2]
        if span is not None and not any(_may_set(module, name) for module in modules):
            yield warning(
                "pointer-unset",
                f"'{variable.name}' is a pointer that nothing sets",
                span,
                "let it point to a variable before it is followed: pointer = &variable",
                f"read at {image.place_of(one)}",
            )


def _may_set(module: Module, name: str) -> bool:
    """Whether a file assigns to a name or takes its address, in code that is used or not."""
    return any(name in _changed(node) for node in ast.walk(module.tree))


def _changed(node: ast.Node) -> Iterator[str]:
    """What is assigned to, or whose address is taken, and what that is a part of."""
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
    image: CheckedImage, pointers: Mapping[str, Variable]
) -> list[tuple[Variable, ir.Instruction]]:
    """Those that code loads and does nothing else with, each with the first load."""
    state = image.state
    exported = {symbol for _, symbol in state.exported_symbols} | state.definitions.keys()
    words = (word for variable in state.variables.values() for word in variable.words)
    known = {word for word in words if type(word) is int}
    loads: dict[str, ir.Instruction] = {}
    others: set[str] = set()
    for function in image.functions():
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
    uses = [
        ((block.label, index), one)
        for block in function.blocks
        for index, one in enumerate(block.instructions)
        if one.op in ("get", "set") and one.names[0] == slot
    ]
    sets = [at for at, one in uses if one.op == "set"]
    for at, one in uses:
        if sets and one.op == "get" and _is_unset_at(function, at, *sets):
            return one
    return None


def _is_unset_at(function: ir.Function, read: Point, declared: Point, *sets: Point) -> bool:
    """Whether all ways from a declaration that first come to a read pass no set."""
    return leads_to(function, declared, read, frozenset(sets)) and not any(
        leads_to(function, declared, one, frozenset((read,)))
        and leads_to(function, one, read, frozenset((declared,)))
        for one in sets
    )
