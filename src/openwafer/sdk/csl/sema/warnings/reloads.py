"""Registers that are loaded again before anything used what they held."""

from collections.abc import Iterator

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.machine_state import Register
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.operations import CALLS
from openwafer.sdk.program.mailbox import DsrFile

_FILES = {DsrFile.DESTINATION: "dsr_dest", DsrFile.SOURCE0: "dsr_src0", DsrFile.SOURCE1: "dsr_src1"}


def vain_loads(state: ImageState) -> Iterator[Diagnostic]:
    """Warnings about loads of registers, where code comes to the next one without a branch.

    Code of several PEs may give a register two names, of which some PEs use the second alone.
    """
    machine, places = state.machine, state.tables.places
    blocks = (block for function in state.module.functions.values() for block in function.blocks)
    for register, first, second in (pair for block in blocks for pair in _pairs(block)):
        spans = [machine.operation_at(*places[one.place].written[:3]) for one in (first, second)]
        own, other = (machine.operations[span] if span else None for span in spans)
        if own == other or own in machine.register_names.get(register, ()):
            file, line, *_ = places[second.place].written
            name = f"{_FILES[DsrFile(register[0])]} {register[1]}"
            yield Diagnostic(
                Severity.WARNING,
                "csl-register-reloaded",
                f"{name} is loaded again before anything uses it",
                spans[0],
                (f"the other load is at {file}:{line}",),
                "leave this load out, or take a register of its own for one of the two",
            )


def _pairs(block: ir.Block) -> Iterator[tuple[Register, ir.Instruction, ir.Instruction]]:
    """Registers, each with two loads that nothing stands between which may use it."""
    unused: dict[Register, ir.Instruction] = {}
    for one in block.instructions:
        if one.op == "load_dsr":
            register = int(one.names[0]), int(one.names[1])
            if register in unused:
                yield register, unused[register], one
            unused[register] = one
        elif one.op in CALLS or one.op == "set_dsr_base":
            unused.clear()
        else:
            for used in (arg for arg in one.args if isinstance(arg, ir.Resource)):
                if used.kind == "dsr":
                    unused.pop((used.number >> 8, used.number & 0xFF), None)
                else:
                    unused.clear()
