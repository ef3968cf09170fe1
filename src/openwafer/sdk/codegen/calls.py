"""Calls: of functions that run to their end, and of those that may suspend.

The caller of a function that may suspend writes the arguments and the state 0 into the callee's
frame, which begins where its own ends. When it is resumed, it calls again, and the callee finds its
own state in its frame; so a whole chain of calls finds back to where it waited.
"""

from collections.abc import Iterator

from openwafer.sdk.codegen.body import llvm_type
from openwafer.sdk.codegen.floats import resize
from openwafer.sdk.codegen.frames import FIRST_PARAMETER, STATE, result_place, result_words
from openwafer.sdk.codegen.functions import FunctionWriter, native_name, result_type
from openwafer.sdk.codegen.mailboxes import CODE_ARGUMENTS, load, store
from openwafer.sdk.ir.function import Function, Instruction, Type
from openwafer.sdk.ir.numbers import num_words
from openwafer.sdk.ir.suspension import callees
from openwafer.sdk.program.debug_info import BY_NUMBER
from openwafer.sdk.program.mailbox import Outcome, Trap


def call(writer: FunctionWriter, instruction: Instruction) -> None:
    """Write a call, direct or indirect."""
    names = callees(writer.unit.module, instruction)
    candidates = [writer.unit.module.functions[name] for name in names]
    if any(name in writer.unit.suspending for name in names):
        _suspending_call(writer, instruction, candidates)
    elif instruction.op == "call":
        value = _plain_call(writer, candidates[0], _arguments(writer, instruction))
        writer.values[instruction.result] = value
    else:
        _plain_dispatch(writer, instruction, candidates)


def _arguments(writer: FunctionWriter, instruction: Instruction) -> list[str]:
    args = instruction.args[instruction.op == "call_indirect" :]
    return [writer.spell(arg) for arg in args]


def _callee_base(writer: FunctionWriter) -> str:
    return writer.body.value(f"add i32 %fp, {writer.frame.num_words}")


def _plain_call(writer: FunctionWriter, callee: Function, args: list[str]) -> str:
    """Call a function that never suspends; gives its result."""
    body = writer.body
    values = "".join(
        f", {llvm_type(slot.type)} {arg}" for slot, arg in zip(callee.parameters, args, strict=True)
    )
    writer.flush_cycles()
    target = f"{native_name(callee.name)}({CODE_ARGUMENTS}, i32 {_callee_base(writer)}{values})"
    whole = result_type(callee)
    pair = body.value(f"call {whole} {target}")
    writer.reload_cycles()
    is_void = callee.return_type is Type.VOID
    trapped = pair if is_void else body.value(f"extractvalue {whole} {pair}, 0")
    good = body.fresh_label()
    body.branch(trapped, "trapped", good)
    body.begin(good)
    return "" if is_void else body.value(f"extractvalue {whole} {pair}, 1")


def _plain_dispatch(
    writer: FunctionWriter, instruction: Instruction, candidates: list[Function]
) -> None:
    """Call the function of a number, none of which suspends."""
    body = writer.body
    kind = llvm_type(instruction.type)
    result = "" if instruction.type is Type.VOID else body.variable(kind)
    args, join = _arguments(writer, instruction), body.fresh_label()
    writer.cycles()
    for callee in _cases(writer, instruction, writer.spell(instruction.args[0]), candidates):
        value = _plain_call(writer, callee, args)
        if value:
            body.do(f"store {kind} {value}, ptr {result}")
        body.jump(join)
    body.begin(join)
    if result:
        writer.values[instruction.result] = body.value(f"load {kind}, ptr {result}")


def _cases(
    writer: FunctionWriter, instruction: Instruction, number: str, candidates: list[Function]
) -> Iterator[Function]:
    """Go to the candidate of a number; begins the block of each candidate that it yields."""
    body = writer.body
    labels, bad = [body.fresh_label() for _ in candidates], body.fresh_label()
    numbers = (writer.unit.numbers[callee.name] for callee in candidates)
    cases = (f"i16 {n}, label %{to}" for n, to in zip(numbers, labels, strict=True))
    body.do(f"switch i16 {number}, label %{bad} [ {' '.join(cases)} ]")
    for callee, label in zip(candidates, labels, strict=True):
        body.begin(label)
        yield callee
    body.begin(bad)
    wide = resize(body, number, Type.FN, Type.U64)
    writer.trap(Trap.UNREACHABLE, wide, instruction.place)


def _suspending_call(
    writer: FunctionWriter, instruction: Instruction, candidates: list[Function]
) -> None:
    """Call functions some of which may suspend, through the callee's frame."""
    body, is_indirect = writer.body, instruction.op == "call_indirect"
    _write_arguments(writer, instruction, candidates)
    if is_indirect:
        number = writer.spell(instruction.args[0])
        store(body, writer.frame_address(writer.frame.callee), number, Type.FN)
    resume, live = writer.suspend(
        instruction.place, BY_NUMBER if is_indirect else candidates[0].name
    )
    writer.flush_cycles()
    again, done = body.fresh_label(), body.fresh_label()
    body.jump(again)
    body.begin(resume)
    writer.restore(live)
    body.jump(again)
    body.begin(again)
    if is_indirect:
        number = load(body, writer.frame_address(writer.frame.callee), Type.FN)
        for callee in _cases(writer, instruction, number, candidates):
            _call_through_frame(writer, callee, done)
    else:
        _call_through_frame(writer, candidates[0], done)
    body.begin(done)
    writer.reload_cycles()
    if instruction.result >= 0:
        place = writer.frame_address(result_place(candidates[0]), _callee_base(writer))
        writer.values[instruction.result] = load(body, place, instruction.type)


def _write_arguments(
    writer: FunctionWriter, instruction: Instruction, candidates: list[Function]
) -> None:
    frames = [writer.unit.frames[callee.name].num_words for callee in candidates]
    shared = result_place(candidates[0]) + result_words(instruction.type)
    writer.check_stack(writer.frame.num_words + max(*frames, shared), instruction.place)
    base, place = _callee_base(writer), FIRST_PARAMETER
    for slot, value in zip(candidates[0].parameters, _arguments(writer, instruction), strict=True):
        store(writer.body, writer.frame_address(place, base), value, slot.type)
        place += num_words(slot.type)
    store(writer.body, writer.frame_address(STATE, base), "0", Type.U16)


def _call_through_frame(writer: FunctionWriter, callee: Function, done: str) -> None:
    """Call a function whose arguments lie in its frame; ends the block."""
    body, base = writer.body, _callee_base(writer)
    if callee.name not in writer.unit.suspending:
        args, place = [], FIRST_PARAMETER
        for slot in callee.parameters:
            args.append(load(body, writer.frame_address(place, base), slot.type))
            place += num_words(slot.type)
        value = _plain_call(writer, callee, args)
        if value:
            place = result_place(callee)
            store(body, writer.frame_address(place, base), value, callee.return_type)
        body.jump(done)
        return
    outcome = body.value(f"call i32 {native_name(callee.name)}({CODE_ARGUMENTS}, i32 {base})")
    ways = f"i32 {Outcome.FINISHED.value}, label %{done}"
    ways += f" i32 {Outcome.TRAPPED.value}, label %trapped"
    body.do(f"switch i32 {outcome}, label %suspended [ {ways} ]")
