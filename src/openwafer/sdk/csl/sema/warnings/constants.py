"""Vector operations that write to a constant."""

from collections.abc import Iterator

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.descriptor import KIND_MASK, WORD_BASE, WORD_KIND, DsdKind


def constants_written(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about known destinations that begin in an array which was declared const."""
    constants = {
        word: one.name
        for one in state.variables.values()
        if not one.is_mutable
        for word in range(one.address, one.address + max(1, len(one.words)))
    }
    places = list(state.places)
    code = (one for function in state.module.functions.values() for one in function.instructions)
    for one in code:
        name = constants.get(_destination(one), "")
        if name:
            file, line, column, where = places[one.place]
            yield Diagnostic(
                Severity.WARNING,
                "csl-constant-written",
                f"@{one.names[0]} writes to '{name.rpartition('.')[2]}', which is a constant",
                state.machine.operation_at(file, line, column),
                (f"at {file}:{line} ({where})",),
                "declare it var, or write to another array",
            )


def _destination(one: ir.Instruction) -> int:
    """First word of a known destination in memory, or -1."""
    words = one.args[0].value if one.op == "vector" and isinstance(one.args[0], ir.Constant) else 0
    if isinstance(words, tuple) and words[WORD_KIND] & KIND_MASK == DsdKind.MEM1D:
        return words[WORD_BASE]
    return -1
