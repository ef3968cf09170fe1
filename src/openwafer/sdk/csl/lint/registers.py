"""Registers that are loaded in vain, or without what operations on them ask for.

Options of operations on registers are those of `@load_to_dsr`, not the operation's own.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from openwafer.diagnostics import Diagnostic
from openwafer.sdk.csl.lint.checked import CheckedImage, loaded_register, warning
from openwafer.sdk.csl.sema.builtins.machine.register_options import SINGLE_STEP
from openwafer.sdk.csl.sema.machine_state import Register
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.operations import CALLS
from openwafer.sdk.program.mailbox import DsrFile
from openwafer.source import Span

_FILES = {DsrFile.DESTINATION: "dsr_dest", DsrFile.SOURCE0: "dsr_src0", DsrFile.SOURCE1: "dsr_src1"}
_SPELLED: Final = {
    "terminate_on_control": "on_control",
    "control_activate": "on_control.activate",
    "control_unblock": "on_control.unblock",
}


def vain_loads(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about loads of registers, where code comes to the next one without a branch.

    Code of several PEs may give a register two names, of which some PEs use the second alone.
    """
    if len(image.code.get("load_dsr", ())) < 2:
        return
    machine = image.state.machine
    blocks = (block for function in image.functions() for block in function.blocks)
    for register, first, second in (pair for block in blocks for pair in _pairs(block)):
        spans = [image.operation_of(one) for one in (first, second)]
        own, other = (machine.operations[span] if span else None for span in spans)
        if own == other or own in machine.register_names.get(register, ()):
            name = f"{_FILES[DsrFile(register[0])]} {register[1]}"
            yield warning(
                "register-reloaded",
                f"{name} is loaded again before anything uses it",
                spans[0],
                "leave this load out, or take a register of its own for one of the two",
                f"the other load is at {image.line_of(second)}",
            )


def _pairs(block: ir.Block) -> Iterator[tuple[Register, ir.Instruction, ir.Instruction]]:
    """Registers, each with two loads that nothing stands between which may use it."""
    unused: dict[Register, ir.Instruction] = {}
    for one in block.instructions:
        if one.op == "load_dsr":
            register = loaded_register(one)
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


def whole_registers(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about registers of `@map` that are loaded without the option it wants."""
    machine = image.state.machine
    for register, span in machine.mapped_registers.items():
        loaded = machine.loaded_options.get(register)
        if loaded is not None and (SINGLE_STEP, "") not in loaded:
            yield warning(
                "single-step",
                "@map takes elements of this register one by one, and no load says single_step",
                span,
                "load it with @load_to_dsr(dsr, dsd, .{ .single_step = true })",
            )


def ignored_options(image: CheckedImage) -> Iterator[Diagnostic]:
    """Warnings about options of operations that no load of their registers gives."""
    loaded = image.state.machine.loaded_options
    for span, (registers, options) in image.state.machine.vain_options.items():
        given = set().union(*(loaded.get(register, set()) for register in registers))
        for name, text in options:
            others = sorted(other for known, other in given if known == name)
            if not others or (text and "" not in others and not _may_be_one_of(text, others)):
                yield _ignored(_SPELLED.get(name, name), text, others, span)
                break


def _may_be_one_of(text: str, others: Sequence[str]) -> bool:
    """Whether a target is among those of the loads; an id and a task's name may be the same."""
    kind = text.split()[0]
    return text in others or any(other.split()[0] != kind for other in others)


def _ignored(name: str, text: str, others: Sequence[str], span: Span) -> Diagnostic:
    own, given = text.partition(" ")[2], ", ".join(o.partition(" ")[2] for o in others)
    said = f".{name} = {own}" if own else f".{name}"
    loads = f"their loads say {given}" if given else "no load of them has it"
    return warning(
        "register-option",
        f"{said} of an operation on registers has no effect; {loads}",
        span,
        f"give @load_to_dsr the option .{name}; it holds for all operations on the register",
    )
