"""Builtins that make ids of numbers and numbers of ids."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import (
    GENERATIONS,
    NUM_COLORS,
    NUM_DSRS,
    NUM_MICROTHREADS,
    NUM_TASK_IDS,
    Arch,
)
from openwafer.sdk.csl import ast
from openwafer.sdk.csl import types as t
from openwafer.sdk.csl.sema.builtins.machine.arguments import with_type, wrong_type
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.values import Comptime, Operand, Runtime


@dataclass(frozen=True)
class _Id:
    """What a builtin of ids gives, and the numbers it takes by generation."""

    type: t.Type
    what: str
    numbers: Mapping[Arch, range]


def _of(numbers: range) -> Mapping[Arch, range]:
    return dict.fromkeys(Arch, numbers)


_LAST_LOCAL_TASK: Final = 30
# The documentation does not say how many there are; its examples stay below.
_NUM_XDSRS: Final = 8
_NUM_SRS: Final = 8
_IDS: Final[Mapping[str, _Id]] = {
    "get_color": _Id(t.COLOR, "color", _of(range(NUM_COLORS))),
    "get_local_task_id": _Id(
        t.LOCAL_TASK_ID,
        "local task id",
        {
            arch: range(generation.first_local_task_id, _LAST_LOCAL_TASK + 1)
            for arch, generation in GENERATIONS.items()
        },
    ),
    "get_control_task_id": _Id(t.CONTROL_TASK_ID, "control task id", _of(range(NUM_TASK_IDS))),
    "get_input_queue": _Id(
        t.INPUT_QUEUE,
        "input queue",
        {arch: range(len(g.input_queue_words)) for arch, g in GENERATIONS.items()},
    ),
    "get_output_queue": _Id(
        t.OUTPUT_QUEUE,
        "output queue",
        {arch: range(len(g.output_queue_words)) for arch, g in GENERATIONS.items()},
    ),
    "get_ut_id": _Id(
        t.UT_ID, "microthread id", {Arch.WSE2: range(0), Arch.WSE3: range(NUM_MICROTHREADS)}
    ),
}


@builtin(*_IDS)
def _get_id(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    kind = _IDS[call.name.text]
    if not kind.numbers[sema.arch]:
        sema.fail("wrong-architecture", f"@{call.name.text} needs WSE-3", call.span)
    operand = sema.expression(node)
    if isinstance(operand, Comptime) and (t.is_int(operand.type) or operand.type in t.IDS):
        return Comptime(kind.type, checked_id(sema, node, kind, sema.integer(node)))
    if operand.type not in (t.U16, kind.type) or not isinstance(operand, Runtime):
        wrong_type(sema, node, "u16", operand)
    return with_type(operand, kind.type)


def checked_id(sema: Sema, node: ast.Expression, kind: _Id, number: int) -> int:
    """The number, when the generation has an id of it."""
    numbers = kind.numbers[sema.arch]
    if number not in numbers:
        sema.fail(
            "id-out-of-range",
            f"{kind.what} {number} does not exist on {sema.arch}",
            node.span,
            help=f"{kind.what}s are {numbers.start} to {numbers.stop - 1}",
        )
    return number


@builtin("get_data_task_id")
def _get_data_task_id(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    source = t.COLOR if sema.arch is Arch.WSE2 else t.INPUT_QUEUE
    operand = sema.expression(node)
    if isinstance(operand, Comptime) and t.is_int(operand.type):
        name = "get_color" if sema.arch is Arch.WSE2 else "get_input_queue"
        number = checked_id(sema, node, _IDS[name], sema.integer(node))
        return Comptime(t.DATA_TASK_ID, number)
    if operand.type != source:
        help_text = f"on {sema.arch} a data task is bound to its {source}"
        wrong_type(sema, node, str(source), operand, help_text)
    return with_type(operand, t.DATA_TASK_ID)


@builtin("get_int")
def _get_int(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    operand = sema.expression(node)
    if isinstance(operand.type, t.Enum):
        return with_type(operand, operand.type.tag)
    if operand.type in t.IDS | t.DSRS:
        return with_type(operand, t.U16)
    if not t.is_int(operand.type):
        wrong_type(sema, node, "an id, enum or integer", operand)
    return operand


_PLAIN_DSRS: Final[dict[t.Type, t.Type]] = {
    t.DSR_FIFO_DEST: t.DSR_DEST,
    t.DSR_FIFO_SRC1: t.DSR_SRC1,
}


@builtin("get_dsr")
def _get_dsr(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    type_node, node = call.arguments
    kind = sema.type_of_node(type_node)
    if kind not in t.DSRS - {t.XDSR, t.SR}:
        message = f"expected type 'dsr_dest, dsr_src0 or dsr_src1', got: '{kind}'"
        sema.fail("type-mismatch", message, type_node.span)
    if sema.comptime_value(node).type in _PLAIN_DSRS.values():
        return _of_plain_register(sema, kind, node)
    return Comptime(kind, _register_number(sema, node, str(kind), NUM_DSRS))


def _of_plain_register(sema: Sema, kind: t.Type, node: ast.Expression) -> Operand:
    """The register as one that holds a FIFO."""
    register = sema.comptime_value(node)
    plain = _PLAIN_DSRS.get(kind)
    if plain != register.type:
        wrong_type(sema, node, "a number" if plain is None else str(plain), register)
    return Comptime(kind, register.value)


@builtin("get_xdsr", "get_sr")
def _get_register(sema: Sema, call: ast.BuiltinCall, _: t.Type | None) -> Operand:
    (node,) = call.arguments
    kind, size = (t.XDSR, _NUM_XDSRS) if call.name.text == "get_xdsr" else (t.SR, _NUM_SRS)
    return Comptime(kind, _register_number(sema, node, str(kind), size))


def _register_number(sema: Sema, node: ast.Expression, file: str, size: int) -> int:
    number = sema.integer(node)
    if number not in range(size):
        help_text = f"there are {size}, 0 to {size - 1}"
        sema.fail("id-out-of-range", f"{file} {number} does not exist", node.span, help=help_text)
    return number
