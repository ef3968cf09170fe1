"""From instructions to LLVM text: the walk over a function."""

from collections.abc import Callable
from typing import Final

from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.codegen import scalars
from openwafer.sdk.codegen.body import llvm_type
from openwafer.sdk.codegen.calls import call
from openwafer.sdk.codegen.checks import check
from openwafer.sdk.codegen.elements import width_of
from openwafer.sdk.codegen.floats import raw_bits
from openwafer.sdk.codegen.functions import FunctionWriter, Unit
from openwafer.sdk.codegen.machine import MACHINE
from openwafer.sdk.codegen.mailboxes import ARGUMENTS, read, write
from openwafer.sdk.codegen.requests import fill_request
from openwafer.sdk.codegen.vectors import Kernel, last_address, mapped, show, take_apart
from openwafer.sdk.ir.arithmetic import BINARY, COMPARISONS
from openwafer.sdk.ir.function import Function, Instruction, Type
from openwafer.sdk.ir.operations import CALLS, NOTED, ORDERED, ROLES
from openwafer.sdk.ir.suspension import is_request
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.debug_info import FrameInfo
from openwafer.sdk.program.mailbox import Outcome, Request


def function_text(unit: Unit, function: Function) -> tuple[str, FrameInfo]:
    """LLVM text of a function, and what lies in its frame."""
    writer = FunctionWriter(unit, function)
    writer.begin()
    for index, block in enumerate(function.blocks):
        writer.begin_block(index)
        for instruction in block.instructions[:-1]:
            _write(writer, instruction)
        writer.terminate(block.instructions[-1])
    return writer.end(), writer.frame_info()


def _write(writer: FunctionWriter, instruction: Instruction) -> None:
    writer.count(instruction)
    writer.begin_wait(instruction)
    op = instruction.op
    if op in CALLS:
        call(writer, instruction)
    elif op == "sync":
        _sync(writer, instruction)
    elif op == "step":
        _ask(writer, instruction, Request.STEP)
    elif is_request(instruction) and ORDERED not in instruction.names:
        _request(writer, instruction)
    else:
        write = MACHINE.get(op) or _SCALARS.get(op) or _arithmetic
        writer.values[instruction.result] = write(writer, instruction)
    writer.end_wait(instruction)


def _leave(writer: FunctionWriter, place: int) -> None:
    """Leave with a request in the mailbox; what comes next is where the function is resumed."""
    resume, live = writer.suspend(place)
    writer.body.jump("suspended")
    writer.body.begin(resume)
    writer.restore(live)


def _sync(writer: FunctionWriter, instruction: Instruction) -> None:
    """Let the machine catch up where operations in flight may have beats before this cycle."""
    body, late, end = writer.body, writer.body.fresh_label(), writer.body.fresh_label()
    # The last cycle whose beats are over; without a sign, one that never comes for 0.
    over = body.value(f"sub i64 {read(body, mailbox.IN_FLIGHT)}, 1")
    is_late = body.value(f"icmp ugt i64 {writer.cycles()}, {over}")
    body.branch(is_late, late, end)
    body.begin(late)
    _ask(writer, instruction, Request.SYNC)
    body.jump(end)
    body.begin(end)


def _ask(writer: FunctionWriter, instruction: Instruction, request: Request) -> None:
    """Make a request that says nothing but when and where it is made."""
    write(writer.body, mailbox.REQUEST, str(request.value))
    write(writer.body, mailbox.PLACE, str(instruction.place))
    writer.flush_cycles()
    _leave(writer, instruction.place)


def _request(writer: FunctionWriter, instruction: Instruction) -> None:
    """Ask the machine for an instruction that only it can do."""
    body = writer.body
    fill_request(body, instruction, writer.spell)
    writer.flush_cycles()
    _leave(writer, instruction.place)
    if instruction.result >= 0:
        kind = llvm_type(instruction.type)
        result = read(body, mailbox.RESULT)
        writer.values[instruction.result] = body.value(f"trunc i64 {result} to {kind}")


def _vector(writer: FunctionWriter, instruction: Instruction) -> str:
    """A vector operation on memory, which always runs to its end; an ordered one may ask for it."""
    body, asked, done, end = writer.body, *(writer.body.fresh_label() for _ in range(3))
    writer.flush_cycles()
    outcome = body.value(_kernel_call(writer, instruction))
    ways = {Outcome.TRAPPED: "trapped"}
    if ORDERED in instruction.names:
        ways[Outcome.SUSPENDED] = asked
    cases = " ".join(f"i32 {number.value}, label %{label}" for number, label in ways.items())
    body.do(f"switch i32 {outcome}, label %{done} [ {cases} ]")
    if ORDERED in instruction.names:
        body.begin(asked)
        _leave(writer, instruction.place)
        body.jump(end)
    body.begin(done)
    writer.reload_cycles()
    body.jump(end)
    body.begin(end)
    return "true"


def _kernel_call(writer: FunctionWriter, instruction: Instruction) -> str:
    name = instruction.names[0]
    letters, operands = "", []
    for index, arg in enumerate(instruction.args):
        letter = "d" if arg.type is Type.DSD else "s" if index else "p"
        value = writer.spell(arg)
        if letter == "p":
            value = writer.body.value(f"lshr i16 {value}, 1")
        if letter == "s":
            width = width_of(VECTOR_OPS[name].sources[index - 1])
            value = raw_bits(writer.body, value, arg.type, width)
        letters += letter
        operands.append(value)
    names = instruction.names
    kernel = Kernel(name, letters, NOTED in names, "tells_wraps" in names)
    writer.unit.kernels[kernel] = None
    values = ", ".join(
        f"{kind} {value}" for kind, value in zip(kernel.operand_types, operands, strict=True)
    )
    return f"call i32 {kernel.function}({ARGUMENTS}, i64 {instruction.place}, {values})"


def _show(writer: FunctionWriter, instruction: Instruction) -> str:
    """``show``: see :func:`~openwafer.sdk.ir.vectors.show_streams`."""
    body, roles = writer.body, [ROLES[role] for role in instruction.names]
    dsds = [
        take_apart(body, writer.spell(arg), 1 + (max(role, 0) >> 1))
        for role, arg in zip(roles, instruction.args, strict=True)
    ]
    length = "65535"
    for dsd in dsds:
        own = body.value(f"and i64 {dsd.extent}, 65535")
        length = body.value(f"call i64 @llvm.umin.i64(i64 {length}, i64 {own})")
    some, end = body.fresh_label(), body.fresh_label()
    body.branch(body.value(f"icmp eq i64 {length}, 0"), end, some)
    body.begin(some)
    with mapped(body) as head:
        for role, dsd in zip(roles, dsds, strict=True):
            if role >= 0:
                ends = dsd.base, last_address(body, dsd, length)
                show(body, head, str(instruction.place), role, ends)
    body.jump(end)
    body.begin(end)
    return ""


def _arithmetic(writer: FunctionWriter, instruction: Instruction) -> str:
    first, second = instruction.args
    sides = writer.spell(first), writer.spell(second)
    body, floats, op = writer.body, writer.unit.floats, instruction.op
    if op in COMPARISONS:
        return scalars.compare(body, floats, op, sides, first.type)
    if op in BINARY:
        return scalars.binary(body, floats, op, *sides, instruction.type)
    return scalars.shift(body, op, *sides, (first.type, second.type))


def _get(writer: FunctionWriter, instruction: Instruction) -> str:
    variable = writer.slots[instruction.names[0]]
    return writer.body.value(f"load {llvm_type(instruction.type)}, ptr {variable}")


def _set(writer: FunctionWriter, instruction: Instruction) -> str:
    (arg,) = instruction.args
    variable = writer.slots[instruction.names[0]]
    writer.body.do(f"store {llvm_type(arg.type)} {writer.spell(arg)}, ptr {variable}")
    return ""


def _neg(writer: FunctionWriter, instruction: Instruction) -> str:
    return scalars.negate(writer.body, writer.spell(instruction.args[0]), instruction.type)


def _not(writer: FunctionWriter, instruction: Instruction) -> str:
    kind = llvm_type(instruction.type)
    return writer.body.value(f"xor {kind} {writer.spell(instruction.args[0])}, -1")


def _cast(writer: FunctionWriter, instruction: Instruction) -> str:
    (arg,) = instruction.args
    return writer.unit.floats.cast(writer.body, writer.spell(arg), arg.type, instruction.type)


def _bitcast(writer: FunctionWriter, instruction: Instruction) -> str:
    (arg,) = instruction.args
    return scalars.bitcast(writer.body, writer.spell(arg), arg.type, instruction.type)


def _math(writer: FunctionWriter, instruction: Instruction) -> str:
    args = [writer.spell(arg) for arg in instruction.args]
    name, kind = instruction.names[0], instruction.type
    return scalars.function(writer.body, writer.unit.floats, name, args, kind)


_SCALARS: Final[dict[str, Callable[[FunctionWriter, Instruction], str]]] = {
    "vector": _vector,
    "show": _show,
    "check": check,
    "get": _get,
    "set": _set,
    "neg": _neg,
    "not": _not,
    "bitnot": _not,
    "cast": _cast,
    "bitcast": _bitcast,
    "math": _math,
}
