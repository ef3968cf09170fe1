"""Options of operations on registers: those of `@load_to_dsr` count, not the operation's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.operation_options import OperationOptions
from openwafer.sdk.csl.sema.machine_state import Register, RegisterOptions
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.sema.sema import Sema
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
SINGLE_STEP: Final = "single_step"
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
    if SINGLE_STEP in options.flags:
        given = (*given, (SINGLE_STEP, ""))
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
