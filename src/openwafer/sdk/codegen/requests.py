"""Filling the mailbox: the compiled form of :mod:`openwafer.sdk.ir.requests`."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.codegen.body import Body, llvm_type
from openwafer.sdk.codegen.floats import raw_bits
from openwafer.sdk.codegen.mailboxes import field, write
from openwafer.sdk.ir.function import Instruction, Resource, Type, Value
from openwafer.sdk.ir.numbers import WIDTHS
from openwafer.sdk.ir.operations import MARKS, VECTOR_OPTIONS
from openwafer.sdk.ir.requests import OPTION_FLAGS, OPTION_WORDS, REQUESTS
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import OperandKind, Option

Spell: TypeAlias = Callable[[Value], str]
"""Gives the LLVM name of a value."""

_NUM_DEFAULTS: Final = mailbox.RESULT - mailbox.ACTIVATE
_NUM_OPERAND_WORDS: Final = mailbox.OPERAND_WORDS * mailbox.NUM_OPERANDS


def fill_request(body: Body, instruction: Instruction, spell: Spell) -> None:
    """Write the request of an instruction that the machine has to serve."""
    write(body, mailbox.REQUEST, str(REQUESTS[instruction.op].value))
    write(body, mailbox.PLACE, str(instruction.place))
    absent = ", ".join(["i64 -1"] * _NUM_DEFAULTS)
    start = field(body, mailbox.ACTIVATE)
    body.do(f"store <{_NUM_DEFAULTS} x i64> <{absent}>, ptr {start}, align 8")
    start = field(body, mailbox.OPERANDS)
    body.do(f"store <{_NUM_OPERAND_WORDS} x i64> zeroinitializer, ptr {start}, align 8")
    args = instruction.args
    operation = ""
    options: Sequence[str] = ()
    values: Sequence[Value] = ()
    match instruction.op:
        case "vector":
            op = VECTOR_OPS[instruction.names[0]]
            num_operands = 1 + len(op.sources)
            operation = str(op.code)
            options, values, args = instruction.names[1:], args[num_operands:], args[:num_operands]
        case "load_dsr":
            operation = str(int(instruction.names[0]) << 8 | int(instruction.names[1]))
            options, values, args = instruction.names[2:], args[1:], args[:1]
        case "set_fifo_lengths":
            operation = instruction.names[0]
        case "print":
            pass
        case _:
            operation, args = _bits(body, args[0], spell), args[1:]
    if operation:
        write(body, mailbox.OPERATION, operation)
    _fill_options(body, options, [_bits(body, value, spell) for value in values])
    for index, arg in enumerate(args):
        _fill_operand(body, index, arg, spell)


def _bits(body: Body, value: Value, spell: Spell) -> str:
    return raw_bits(body, spell(value), value.type, 64)


def _fill_options(body: Body, names: Sequence[str], values: Sequence[str]) -> None:
    options = Option(0)
    remaining = iter(values)
    for name in names:
        if name in MARKS:
            continue
        options |= OPTION_FLAGS.get(name, 0)
        if VECTOR_OPTIONS[name]:
            write(body, OPTION_WORDS[name], next(remaining))
    write(body, mailbox.OPTIONS, str(options.value))


def _fill_operand(body: Body, index: int, arg: Value, spell: Spell) -> None:
    start = mailbox.OPERANDS + index * mailbox.OPERAND_WORDS
    if isinstance(arg, Resource):
        kind = OperandKind.DSR if arg.kind == "dsr" else OperandKind.FIFO
        write(body, start + 1, str(arg.number))
    elif WIDTHS[arg.type] > 64:
        kind = OperandKind.DSD
        address = field(body, start + 1)
        body.do(f"store {llvm_type(arg.type)} {spell(arg)}, ptr {address}, align 8")
    elif arg.type is Type.PTR and index == 0:
        kind = OperandKind.POINTER
        write(body, start + 1, body.value(f"lshr i64 {_bits(body, arg, spell)}, 1"))
    else:
        kind = OperandKind.SCALAR
        write(body, start + 1, _bits(body, arg, spell))
    write(body, start, str(kind.value))
