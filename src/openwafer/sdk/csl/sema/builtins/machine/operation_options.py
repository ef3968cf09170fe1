"""The last argument of vector operations and of `@load_to_dsr`: `.{ .async = true, ... }`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.descriptors import PRIORITIES
from openwafer.sdk.csl.sema.builtins.machine.structs import Options
from openwafer.sdk.csl.sema.builtins.machine.targets import known_target, target_value
from openwafer.sdk.csl.sema.machine_state import TargetId
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.values import Comptime, Operand
from openwafer.sdk.ir.function import Value
from openwafer.sdk.ir.operations import VECTOR_OPTIONS
from openwafer.sdk.program.mailbox import Option
from openwafer.source import Span

_FLAGS: Final[Mapping[str, Option]] = {
    "async": Option.ASYNC,
    "terminate_on_control": Option.TERMINATE_ON_CONTROL,
    "save_address": Option.SAVE_ADDRESS,
    "single_step": Option.SINGLE_STEP,
}
_NEED_ASYNC: Final = ("activate", "unblock", "control_activate", "control_unblock", "microthread")


@dataclass
class OperationOptions:
    """Options by the names of :data:`~openwafer.sdk.ir.operations.VECTOR_OPTIONS`.

    Attributes:
        flags: options without a value.
        values: the others, each with its place in the source.
    """

    flags: set[str] = field(default_factory=set)
    values: dict[str, tuple[Operand, Span]] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        """Whether the operation runs on while the code goes on."""
        return "async" in self.flags

    def lowered(self, sema: Sema) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """Names and operands for an instruction, in the order of the contract."""
        names = tuple(name for name in VECTOR_OPTIONS if name in self.flags or name in self.values)
        operands = (self.values[name] for name in names if VECTOR_OPTIONS[name])
        values = zip((name for name in names if VECTOR_OPTIONS[name]), operands, strict=True)
        return names, tuple(_lower(sema, name, *value) for name, value in values)

    def flag_bits(self) -> int:
        """Flags as the mailbox has them."""
        return sum(_FLAGS[name] for name in self.flags)

    def known_targets(self, sema: Sema) -> tuple[tuple[str, TargetId, Span], ...]:
        """Values that must be known, by the names of the fields of an image's DSR."""
        found: list[tuple[str, TargetId, Span]] = []
        for name, (operand, span) in self.values.items():
            if isinstance(operand, Comptime) and isinstance(operand.value, int):
                is_plain = name in ("microthread", "priority")
                if is_plain:
                    found.append((name, operand.value, span))
                    continue
            is_block = "unblock" in name
            found.append((name, known_target(sema, operand, span, is_block=is_block), span))
        return tuple(found)


def _lower(sema: Sema, name: str, operand: Operand, span: Span) -> Value:
    if name in ("index", "microthread", "priority"):
        return sema.lower(operand, span)
    return target_value(sema, operand, span, is_block="unblock" in name)


def operation_options(
    sema: Sema, node: ast.Expression | None, span: Span, *, for_dsr: bool = False
) -> OperationOptions:
    """Read the struct of an operation; `for_dsr` takes the fields that only DSRs have."""
    found = OperationOptions()
    options = Options.read(sema, node, span)
    for name in ("async", "save_address", "single_step") if for_dsr else ("async",):
        if options.flag(name):
            found.flags.add(name)
    for name in ("activate", "unblock"):
        _take(found, options, name, name)
    control = options.operand("on_control")
    if control is not None:
        _on_control(sema, found, options.span, control)
    if not for_dsr:
        index = options.typed("index", t.U16)
        if index is not None:
            found.values["index"] = (index, options.span)
    _thread_and_priority(sema, found, options)
    options.close()
    _check(sema, found, options)
    return found


def _take(found: OperationOptions, options: Options, field_name: str, name: str) -> None:
    operand = options.operand(field_name)
    if operand is not None:
        found.values[name] = (operand, options.span)


def _on_control(sema: Sema, found: OperationOptions, span: Span, control: Operand) -> None:
    for name, operand in sema.fields(control, span).items():
        if name in ("activate", "unblock"):
            found.flags.add("terminate_on_control")
            found.values[f"control_{name}"] = (operand, span)
        elif name == "terminate" and isinstance(operand, Comptime):
            if bool(operand.value):
                found.flags.add("terminate_on_control")
        else:
            help_text = "the fields are terminate, activate, unblock"
            sema.fail("unknown-field", f"no field '{name}' in on_control", span, help=help_text)


def _thread_and_priority(sema: Sema, found: OperationOptions, options: Options) -> None:
    if "ut_id" in options and sema.arch is not Arch.WSE3:
        sema.fail("wrong-architecture", "'ut_id' needs WSE-3", options.span)
    thread = options.typed("ut_id", t.UT_ID)
    if thread is not None:
        found.values["microthread"] = (thread, options.span)
    priority = options.choice("priority", PRIORITIES)
    if priority is not None and sema.arch is Arch.WSE3:
        message = "'priority' of an operation has no effect on wse3"
        help_text = "give it to the fabric DSD or the FIFO: .priority = ..."
        sema.forbid("option-ignored", message, options.span, help_text)
    elif priority is not None:
        found.values["priority"] = (Comptime(t.U16, priority), options.span)


def _check(sema: Sema, found: OperationOptions, options: Options) -> None:
    if "activate" in found.values and "unblock" in found.values:
        message = "an operation activates or unblocks at its end, not both"
        sema.fail("wrong-field", message, options.span)
    needy = next((name for name in _NEED_ASYNC if name in found.values), None)
    if needy is not None and not found.is_async:
        message = f"'{needy}' has no meaning without async"
        sema.fail("needs-async", message, options.span, help="add .async = true")
