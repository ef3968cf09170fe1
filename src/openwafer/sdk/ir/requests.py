"""How an instruction becomes a request in the mailbox."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.ir.function import Instruction, Resource, Type
from openwafer.sdk.ir.operations import MARKS, VECTOR_OPTIONS
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import OperandKind, Option, Request

Argument: TypeAlias = int | tuple[int, ...] | Resource
"""Bits, words of a descriptor, or a DSR or FIFO."""

OPTION_FLAGS: Final[Mapping[str, Option]] = {
    "async": Option.ASYNC,
    "save_address": Option.SAVE_ADDRESS,
    "single_step": Option.SINGLE_STEP,
    "terminate_on_control": Option.TERMINATE_ON_CONTROL,
    "index": Option.HAS_INDEX,
    "filter": Option.FILTER,
    "tells_wraps": Option.TELLS_WRAPS,
}
"""Options that are bits of the mailbox, by their name in the IR."""
OPTION_WORDS: Final[Mapping[str, int]] = {
    "activate": mailbox.ACTIVATE,
    "unblock": mailbox.UNBLOCK,
    "control_activate": mailbox.CONTROL_ACTIVATE,
    "control_unblock": mailbox.CONTROL_UNBLOCK,
    "index": mailbox.INDEX,
    "microthread": mailbox.MICROTHREAD,
    "priority": mailbox.PRIORITY,
}
"""Options that have a word of the mailbox."""
REQUESTS: Final[Mapping[str, Request]] = {
    "read_register": Request.READ_REGISTER,
    "write_register": Request.WRITE_REGISTER,
    "flush_queue": Request.FLUSH_QUEUE,
    "print": Request.PRINT,
    "set_fifo_lengths": Request.SET_FIFO_LENGTHS,
    "set_dsr_base": Request.SET_DSR_BASE,
    "load_dsr": Request.LOAD_DSR,
    "vector": Request.VECTOR,
}
"""What the machine has to serve, by operation."""


def fill_request(
    box: NDArray[np.int64], instruction: Instruction, args: Sequence[Argument]
) -> None:
    """Write the request of an instruction that the machine has to serve.

    Args:
        box: mailbox, shape (MAILBOX_WORDS,).
        args: bits of the instruction's operands.
    """
    box[mailbox.REQUEST] = REQUESTS[instruction.op]
    box[mailbox.OPTIONS] = 0
    box[mailbox.ACTIVATE : mailbox.RESULT] = -1
    box[mailbox.OPERANDS : mailbox.MAP_STATE] = 0
    kinds = [arg.type for arg in instruction.args]
    match instruction.op:
        case "vector":
            name = instruction.names[0]
            box[mailbox.OPERATION] = VECTOR_OPS[name].code
            num_operands = 1 + len(VECTOR_OPS[name].sources)
            _fill_options(box, instruction.names[1:], args[num_operands:])
            _fill_operands(box, kinds[:num_operands], args[:num_operands])
        case "load_dsr":
            box[mailbox.OPERATION] = int(instruction.names[0]) << 8 | int(instruction.names[1])
            _fill_options(box, instruction.names[2:], args[1:])
            _fill_operands(box, kinds[:1], args[:1])
        case "set_fifo_lengths":
            box[mailbox.OPERATION] = int(instruction.names[0])
            _fill_operands(box, kinds, args)
        case "print":
            _fill_operands(box, kinds, args)
        case _:
            box[mailbox.OPERATION] = _number(args[0])
            _fill_operands(box, kinds[1:], args[1:])


def _number(arg: Argument) -> int:
    if not isinstance(arg, int):
        raise TypeError(f"{arg} is no number")
    return arg


def _fill_options(box: NDArray[np.int64], names: Sequence[str], args: Sequence[Argument]) -> None:
    values = iter(args)
    for option in names:
        if option in MARKS:
            continue
        box[mailbox.OPTIONS] |= OPTION_FLAGS.get(option, 0)
        if VECTOR_OPTIONS[option]:
            box[OPTION_WORDS[option]] = _number(next(values))


def _fill_operands(box: NDArray[np.int64], kinds: Sequence[Type], args: Sequence[Argument]) -> None:
    for index, (kind, arg) in enumerate(zip(kinds, args, strict=True)):
        start = mailbox.OPERANDS + index * mailbox.OPERAND_WORDS
        words = [int(word) for word in _operand(kind, arg, is_destination=index == 0)]
        box[start : start + len(words)] = np.array(words, dtype=np.uint64).astype(np.int64)


def _operand(kind: Type, arg: Argument, *, is_destination: bool) -> Iterator[int]:
    match arg:
        case Resource("dsr", number):
            yield from (OperandKind.DSR, number)
        case Resource(_, number):
            yield from (OperandKind.FIFO, number)
        case tuple():
            yield OperandKind.DSD
            for first in range(0, len(arg), 4):
                yield sum(word << (16 * index) for index, word in enumerate(arg[first : first + 4]))
        case int():
            if kind is Type.PTR and is_destination:
                yield from (OperandKind.POINTER, arg // WORD_BYTES)
            else:
                yield from (OperandKind.SCALAR, arg)
