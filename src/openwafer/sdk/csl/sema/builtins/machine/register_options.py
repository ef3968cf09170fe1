"""Options of operations on registers: those of `@load_to_dsr` count, not the operation's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.operation_options import OperationOptions
from openwafer.sdk.csl.sema.engine import Sema
from openwafer.sdk.csl.sema.machine_state import MachineState, Register, RegisterOptions
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.values import Comptime, FunctionValue, Loaded, Operand
from openwafer.source import Span

_OF_THE_LOAD: Final = (
    "async",
    "terminate_on_control",
    "activate",
    "unblock",
    "control_activate",
    "control_unblock",
)
_SINGLE_STEP: Final = "single_step"
_SPELLED: Final = {
    "terminate_on_control": "on_control",
    "control_activate": "on_control.activate",
    "control_unblock": "on_control.unblock",
}
_OWN_OPTIONS: Final = frozenset((t.FABIN_DSD, t.FABOUT_DSD, t.FIFO, *t.FIFO_DSRS))
"""Operands that an operation's own options are for."""


@dataclass(frozen=True, slots=True)
class _Use(Question):
    """What a load gives registers, or an operation on registers says in vain."""

    registers: tuple[Register, ...]
    options: RegisterOptions
    span: Span
    is_load: bool

    def answer(self, sema: Sema) -> None:
        """None: what the other loads give is known at the end."""
        machine = sema.image.machine
        if self.is_load:
            machine.loaded_options.setdefault(self.registers[0], set()).update(self.options)
        else:
            machine.vain_options.setdefault(self.span, (self.registers, self.options))


def note_load(sema: Sema, register: Register, options: OperationOptions, span: Span) -> None:
    """A register is loaded with options."""
    given = _given(options)
    if _SINGLE_STEP in options.flags:
        given = (*given, (_SINGLE_STEP, ""))
    sema.ask(_Use((register,), given, span, is_load=True))


@dataclass(frozen=True, slots=True)
class _Mapped(Question):
    """A register that `@map` takes elements of."""

    taken: Register
    span: Span

    def answer(self, sema: Sema) -> None:
        """None: how it is loaded is known at the end."""
        sema.image.machine.mapped_registers.setdefault(self.taken, self.span)


def note_mapped(sema: Sema, register: Register, span: Span) -> None:
    """A register gives `@map` its elements one by one, or takes them."""
    sema.ask(_Mapped(register, span))


def whole_registers(state: MachineState) -> Iterator[Diagnostic]:
    """Warnings about registers of `@map` that are loaded without the option it wants."""
    for register, span in state.mapped_registers.items():
        loaded = state.loaded_options.get(register)
        if loaded is not None and (_SINGLE_STEP, "") not in loaded:
            yield Diagnostic(
                Severity.WARNING,
                "csl-single-step",
                "@map takes elements of this register one by one, and no load says single_step",
                span,
                help="load it with @load_to_dsr(dsr, dsd, .{ .single_step = true })",
            )


def without_own(
    sema: Sema,
    operands: Sequence[Loaded],
    registers: Sequence[Register],
    options: OperationOptions,
    span: Span,
) -> None:
    """Take away the options that an operation on registers gets from them."""
    if not registers or any(operand.type in _OWN_OPTIONS for operand in operands):
        return
    given = _given(options)
    if given:
        sema.ask(_Use(tuple(registers), given, span, is_load=False))
    options.flags.difference_update(_OF_THE_LOAD)
    for name in _OF_THE_LOAD:
        options.values.pop(name, None)


def _given(options: OperationOptions) -> RegisterOptions:
    flags = ((name, "") for name in _OF_THE_LOAD if name in options.flags)
    values = (
        (name, _text(options.values[name][0])) for name in _OF_THE_LOAD if name in options.values
    )
    return (*flags, *values)


def _text(operand: Operand) -> str:
    """What tells targets apart: a task's name, or an id; nothing for what run time knows."""
    if not isinstance(operand, Comptime):
        return ""
    kind = "task" if isinstance(operand.value, FunctionValue) else operand.type
    return f"{kind} {operand.value}"


def ignored_options(
    loaded: dict[Register, set[tuple[str, str]]],
    vain: dict[Span, tuple[tuple[Register, ...], RegisterOptions]],
) -> Iterator[Diagnostic]:
    """Warnings about options of operations that no load of their registers gives."""
    for span, (registers, options) in vain.items():
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
    return Diagnostic(
        Severity.WARNING,
        "csl-register-option",
        f"{said} of an operation on registers has no effect; {loads}",
        span,
        help=f"give @load_to_dsr the option .{name}; it holds for all operations on the register",
    )
