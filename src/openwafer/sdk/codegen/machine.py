"""What code touches of its PE without a request; see :mod:`openwafer.sdk.ir.machine`."""

from collections.abc import Callable
from typing import Final

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.codegen.floats import from_raw_bits, raw_bits, resize
from openwafer.sdk.codegen.functions import FunctionWriter
from openwafer.sdk.codegen.mailboxes import byte_address, field, load, read, store, write
from openwafer.sdk.ir.function import Address, Instruction, Type, Value
from openwafer.sdk.ir.machine import COORDINATES, NARROW
from openwafer.sdk.ir.numbers import num_words
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import BlockKind, Trap


def load_value(writer: FunctionWriter, instruction: Instruction) -> str:
    """``load``"""
    kind = instruction.type
    address = _checked(writer, instruction.args[0], kind, instruction.place)
    if kind in NARROW:
        return from_raw_bits(writer.body, writer.body.value(f"load i8, ptr {address}"), 8, kind)
    return load(writer.body, address, kind)


def store_value(writer: FunctionWriter, instruction: Instruction) -> str:
    """``store``"""
    target, value = instruction.args
    address = _checked(writer, target, value.type, instruction.place)
    spelled = writer.spell(value)
    if value.type in NARROW:
        writer.body.do(f"store i8 {raw_bits(writer.body, spelled, value.type, 8)}, ptr {address}")
    else:
        store(writer.body, address, spelled, value.type)
    return ""


def _checked(writer: FunctionWriter, address: Value, kind: Type, place: int) -> str:
    """Native address of a value that lies in memory; traps otherwise."""
    body, spelled = writer.body, writer.spell(address)
    words = writer.unit.module.memory_words
    # Globals lie in memory; so does what the compiler addresses inside of them.
    is_known = isinstance(address, Address)
    num_bytes = 1 if kind in NARROW else WORD_BYTES * num_words(kind)
    if (address, num_bytes) in writer.inside:
        return byte_address(body, spelled, "i16")
    if kind in NARROW:
        last = WORD_BYTES * words - 1
        if not (is_known and int(spelled) <= last):
            fits = body.value(f"icmp ule i16 {spelled}, {last & 0xFFFF}")
            word = body.value(f"lshr i64 {resize(body, spelled, Type.PTR, Type.U64)}, 1")
            writer.trap_unless(fits, Trap.OUT_OF_BOUNDS, word, place)
    elif not (is_known and int(spelled) % 2 == 0 and int(spelled) // 2 <= words - num_words(kind)):
        _check_word(writer, spelled, words - num_words(kind), place)
    return byte_address(body, spelled, "i16")


def _check_word(writer: FunctionWriter, address: str, last: int, place: int) -> None:
    """Trap unless a word of memory begins at a byte address, at `last` at most."""
    body = writer.body
    # Rotated, odd addresses come behind all memory, so that one comparison finds them, too.
    begin = body.value(f"call i16 @llvm.fshr.i16(i16 {address}, i16 {address}, i16 1)")
    fits = body.value(f"icmp ule i16 {begin}, {last}")
    wide = resize(body, address, Type.PTR, Type.U64)
    is_odd = body.value(f"trunc i64 {wide} to i1")
    kinds = str(Trap.MISALIGNED.value), str(Trap.OUT_OF_BOUNDS.value)
    kind = body.select(is_odd, "i64", *kinds)
    value = body.select(is_odd, "i64", wide, body.value(f"lshr i64 {wide}, 1"))
    writer.trap_unless(fits, kind, value, place)


def copy(writer: FunctionWriter, instruction: Instruction) -> str:
    """``copy``: the ranges may overlap."""
    body = writer.body
    target, source, length = (
        raw_bits(body, writer.spell(arg), arg.type, 64) for arg in instruction.args
    )
    for start in (source, target):
        end = body.value(f"add i64 {start}, {length}")
        fits = body.value(f"icmp ule i64 {end}, {WORD_BYTES * writer.unit.module.memory_words}")
        word = body.value(f"lshr i64 {start}, 1")
        writer.trap_unless(fits, Trap.OUT_OF_BOUNDS, word, instruction.place)
    to, of = (byte_address(body, start, "i64") for start in (target, source))
    body.do(f"call void @llvm.memmove.p0.p0.i64(ptr {to}, ptr {of}, i64 {length}, i1 false)")
    return ""


def slot_address(writer: FunctionWriter, instruction: Instruction) -> str:
    """``slot_address``"""
    place = writer.frame.places[instruction.names[0]]
    wide = writer.body.value(f"add i32 %fp, {place}")
    return _begin_of(writer, writer.body.value(f"trunc i32 {wide} to i16"))


def _begin_of(writer: FunctionWriter, word: str) -> str:
    """Address of a word's first byte."""
    return writer.body.value(f"shl i16 {word}, 1")


def ptr_add(writer: FunctionWriter, instruction: Instruction) -> str:
    """``ptr_add``, ``byte_add``"""
    pointer, offset = instruction.args
    step = resize(writer.body, writer.spell(offset), offset.type, Type.PTR)
    if instruction.op == "ptr_add":
        step = _begin_of(writer, step)
    return writer.body.value(f"add i16 {writer.spell(pointer)}, {step}")


def word_of(writer: FunctionWriter, instruction: Instruction) -> str:
    """``word_of``"""
    return writer.body.value(f"lshr i16 {writer.spell(instruction.args[0])}, 1")


def at_word(writer: FunctionWriter, instruction: Instruction) -> str:
    """``at_word``"""
    (word,) = instruction.args
    return _begin_of(writer, resize(writer.body, writer.spell(word), word.type, Type.PTR))


def dsd_get(writer: FunctionWriter, instruction: Instruction) -> str:
    """``dsd_get``"""
    descriptor = instruction.args[0]
    lanes = 8 if descriptor.type is Type.DSD else 16
    vector = f"<{lanes} x i16> {writer.spell(descriptor)}"
    word = writer.body.value(f"extractelement {vector}, i64 {instruction.names[0]}")
    return resize(writer.body, word, Type.U16, instruction.type)


def dsd_set(writer: FunctionWriter, instruction: Instruction) -> str:
    """``dsd_set``"""
    descriptor, value = instruction.args
    word = raw_bits(writer.body, writer.spell(value), value.type, 16)
    vector = f"<{8 if descriptor.type is Type.DSD else 16} x i16> {writer.spell(descriptor)}"
    return writer.body.value(f"insertelement {vector}, i16 {word}, i64 {instruction.names[0]}")


def schedule(writer: FunctionWriter, instruction: Instruction) -> str:
    """``activate``, ``block``, ``unblock``: bits of tasks, queues and microthreads."""
    body, arg = writer.body, instruction.args[0]
    target = raw_bits(body, writer.spell(arg), arg.type, 64)
    if instruction.op == "activate":
        _change_bit(writer, field(body, mailbox.ACTIVE), target, is_set=True)
        return ""
    kind = body.value(f"lshr i64 {target}, 8")
    number = body.value(f"and i64 {target}, 255")
    is_task = body.value(f"icmp eq i64 {kind}, {BlockKind.TASK.value}")
    is_thread = body.value(f"icmp eq i64 {kind}, {BlockKind.MICROTHREAD.value}")
    shifted = body.value(f"add i64 {number}, {body.select(is_thread, 'i64', '8', '0')}")
    place = body.select(is_task, "i64", str(mailbox.BLOCKED), str(mailbox.BLOCKED_QUEUES))
    address = body.value(f"getelementptr i64, ptr %mailbox, i64 {place}")
    _change_bit(writer, address, shifted, is_set=instruction.op == "block")
    return ""


def _change_bit(writer: FunctionWriter, address: str, bit: str, *, is_set: bool) -> None:
    body = writer.body
    mask = body.value(f"shl i64 1, {body.value(f'and i64 {bit}, 63')}")
    old = body.value(f"load i64, ptr {address}")
    if is_set:
        new = body.value(f"or i64 {old}, {mask}")
    else:
        new = body.value(f"and i64 {old}, {body.value(f'xor i64 {mask}, -1')}")
    body.do(f"store i64 {new}, ptr {address}")


def timestamp(writer: FunctionWriter, instruction: Instruction) -> str:
    """``timestamp``"""
    body = writer.body
    base = read(body, mailbox.TIMESTAMP_BASE)
    is_on = body.value(f"icmp ne i64 {read(body, mailbox.TIMESTAMP_IS_ON)}, 0")
    running = body.value(f"sub i64 {writer.cycles()}, {base}")
    value = body.select(is_on, "i64", running, base)
    shifted = body.value(f"lshr i64 {value}, {16 * int(instruction.names[0])}")
    word = body.value(f"trunc i64 {shifted} to i16")
    return resize(body, word, Type.U16, instruction.type)


def timestamp_control(writer: FunctionWriter, instruction: Instruction) -> str:
    """``timestamp_control``: a counter that stands is kept where its base was."""
    body, action = writer.body, instruction.names[0]
    base, now = read(body, mailbox.TIMESTAMP_BASE), writer.cycles()
    is_on = body.value(f"icmp ne i64 {read(body, mailbox.TIMESTAMP_IS_ON)}, 0")
    if action == "reset":
        write(body, mailbox.TIMESTAMP_BASE, body.select(is_on, "i64", now, "0"))
        return ""
    difference = body.value(f"sub i64 {now}, {base}")
    sides = (base, difference) if action == "enable" else (difference, base)
    write(body, mailbox.TIMESTAMP_BASE, body.select(is_on, "i64", *sides))
    write(body, mailbox.TIMESTAMP_IS_ON, str(int(action == "enable")))
    return ""


def random(writer: FunctionWriter, instruction: Instruction) -> str:
    """``random``"""
    state = writer.body.value("call i64 @random(ptr %mailbox)")
    word = writer.body.value(f"trunc i64 {state} to i16")
    return resize(writer.body, word, Type.U16, instruction.type)


def seed_random(writer: FunctionWriter, instruction: Instruction) -> str:
    """``seed_random``"""
    (state,) = instruction.args
    bits = raw_bits(writer.body, writer.spell(state), state.type, 64)
    write(writer.body, mailbox.RANDOM, writer.body.value(f"and i64 {bits}, 4294967295"))
    return ""


def coordinate(writer: FunctionWriter, instruction: Instruction) -> str:
    """``coordinate``"""
    shift, both = COORDINATES[instruction.names[0]], read(writer.body, mailbox.COORDINATES)
    wide = writer.body.value(f"lshr i64 {both}, {shift}")
    word = writer.body.value(f"trunc i64 {wide} to i16")
    return resize(writer.body, word, Type.U16, instruction.type)


def parameter(writer: FunctionWriter, instruction: Instruction) -> str:
    """``parameter``"""
    body = writer.body
    record = body.value(f"inttoptr i64 {read(body, mailbox.PARAMS)} to ptr")
    address = body.value(f"getelementptr i64, ptr {record}, i64 {instruction.names[0]}")
    return from_raw_bits(body, body.value(f"load i64, ptr {address}"), 64, instruction.type)


def open_stream(writer: FunctionWriter, _instruction: Instruction) -> str:
    """``open_stream``"""
    write(writer.body, mailbox.STREAM_OPEN, "1")
    return ""


def drain(writer: FunctionWriter, _instruction: Instruction) -> str:
    """``drain``"""
    writer.drain()
    return ""


def check(writer: FunctionWriter, instruction: Instruction) -> str:
    """``assert``"""
    condition = writer.spell(instruction.args[0])
    writer.trap_unless(condition, Trap.ASSERTION, "0", instruction.place)
    return ""


MACHINE: Final[dict[str, Callable[[FunctionWriter, Instruction], str]]] = {
    "load": load_value,
    "store": store_value,
    "copy": copy,
    "slot_address": slot_address,
    "ptr_add": ptr_add,
    "byte_add": ptr_add,
    "word_of": word_of,
    "at_word": at_word,
    "dsd_get": dsd_get,
    "dsd_set": dsd_set,
    **dict.fromkeys(("activate", "block", "unblock"), schedule),
    "timestamp": timestamp,
    "timestamp_control": timestamp_control,
    "random": random,
    "seed_random": seed_random,
    "coordinate": coordinate,
    "parameter": parameter,
    "open_stream": open_stream,
    "assert": check,
    "drain": drain,
}
"""Every operation of this module; each gives the value that it defines, or nothing."""
