"""Vector operations that write to a constant, or move an array onto itself."""

from collections.abc import Iterator
from typing import Final

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.descriptor import KIND_MASK, WORD_BASE, WORD_KIND, DsdKind

_MOVES: Final = frozenset(("mov16", "mov32", "fmovh", "fmovs"))


def constants_written(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about known destinations that begin in an array which was declared const."""
    constants = {
        word: one.name
        for one in state.variables.values()
        if not one.is_mutable
        for word in range(one.address, one.address + max(1, len(one.words)))
    }
    for one in _operations(state):
        name = constants.get(_destination(one), "")
        if name:
            message = f"@{one.names[0]} writes to '{name.rpartition('.')[2]}', which is a constant"
            remedy = "declare it var, or write to another array"
            yield _warning(state, one, "constant-written", message, remedy)


def moves_of_nothing(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about known arrays that are moved onto themselves."""
    for one in _operations(state):
        if one.names[0] in _MOVES and _destination(one) >= 0 and one.args[0] == one.args[1]:
            message = f"@{one.names[0]} moves an array onto itself, which changes nothing"
            yield _warning(state, one, "move-unused", message, "another descriptor may be meant")


def _operations(state: ImageState) -> Iterator[ir.Instruction]:
    code = (one for function in state.module.functions.values() for one in function.instructions)
    return (one for one in code if one.op == "vector")


def _warning(
    state: ImageState, one: ir.Instruction, code: str, message: str, remedy: str
) -> Diagnostic:
    file, line, column, where = state.tables.places[one.place].written
    span, notes = state.machine.operation_at(file, line, column), (f"at {file}:{line} ({where})",)
    return Diagnostic(Severity.WARNING, f"csl-{code}", message, span, notes, remedy)


def _destination(one: ir.Instruction) -> int:
    """First word of a known destination in memory, or -1."""
    words = one.args[0].value if isinstance(one.args[0], ir.Constant) else 0
    if isinstance(words, tuple) and words[WORD_KIND] & KIND_MASK == DsdKind.MEM1D:
        return words[WORD_BASE]
    return -1
