"""``check``: the compiled form of :mod:`openwafer.sdk.ir.checking`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, element_words
from openwafer.sdk.codegen.floats import raw_bits
from openwafer.sdk.codegen.functions import FunctionWriter
from openwafer.sdk.codegen.mailboxes import read
from openwafer.sdk.codegen.vectors import mapped
from openwafer.sdk.ir.checks import MET_IN_FLIGHT, OUTSIDE, READ, WRITE
from openwafer.sdk.ir.function import Constant, Instruction, Type, Value
from openwafer.sdk.ir.numbers import SIGNED, WIDTHS
from openwafer.sdk.ir.unwritten import STREAM
from openwafer.sdk.program import descriptor, mailbox
from openwafer.sdk.program.mailbox import Finding, Trap, finding_of, wrap_of

_WAYS: Final = ("read", "write", "begin", "copy")
"""Words of the kind ``written``, as the function `note` numbers them."""
_USED: Final = {
    READ: mailbox.FLIGHT_WRITES,
    WRITE: mailbox.FLIGHT_USES,
    STREAM: mailbox.IN_FLIGHT,
}
"""Of the kind ``flight``: the word that says what an access may meet."""
_NUM_WIDTHS: Final = 3
"""The sum of both widths of elements, in words."""


SUPPORT: Final = f"""\
define internal void @tell(ptr %mailbox, i64 %place, i64 %finding, i64 %first, i64 %second,
    i64 %now) cold noinline {{
  %cycle = getelementptr i64, ptr %mailbox, i64 {mailbox.CYCLE}
  store i64 %now, ptr %cycle
  %map = getelementptr i64, ptr %mailbox, i64 {mailbox.MAP}
  %head = load i64, ptr %map
  %is_none = icmp eq i64 %head, 0
  br i1 %is_none, label %end, label %some
some:
  %pointer = inttoptr i64 %head to ptr
  %look = load ptr, ptr %pointer
  %field = getelementptr i64, ptr %mailbox, i64 {mailbox.MAP_STATE}
  %state = load i64, ptr %field
  call void %look(i64 %state, ptr %mailbox, i64 %place, i64 %finding, i64 %first, i64 %second)
  br label %end
end:
  ret void
}}
define internal i1 @outside(ptr %mailbox, i64 %place, i64 %finding, i64 %address, i64 %begin,
    i64 %length, i64 %memory, i64 %now) cold noinline {{
  call void @tell(ptr %mailbox, i64 %place, i64 %finding, i64 %address, i64 %begin, i64 %now)
  %bit = and i64 %address, 1
  %is_odd = icmp ne i64 %bit, 0
  %is_wide = icmp ne i64 %length, 1
  %is_misaligned = and i1 %is_odd, %is_wide
  %end = add i64 %address, %length
  %is_beyond = icmp ugt i64 %end, %memory
  %traps = or i1 %is_misaligned, %is_beyond
  br i1 %traps, label %wrong, label %good
wrong:
  %kind = select i1 %is_misaligned, i64 {Trap.MISALIGNED.value}, i64 {Trap.OUT_OF_BOUNDS.value}
  %word = lshr i64 %address, 1
  %value = select i1 %is_misaligned, i64 %address, i64 %word
  call void @trap(ptr %mailbox, i64 %kind, i64 %value, i64 %place)
  ret i1 true
good:
  ret i1 false
}}
define internal i1 @unwritten(ptr %mailbox, i64 %low, i64 %high) {{
entry:
  %field = getelementptr i64, ptr %mailbox, i64 {mailbox.UNWRITTEN}
  %bits_at = load i64, ptr %field
  %bits = inttoptr i64 %bits_at to ptr
  %first = lshr i64 %low, 6
  %last = lshr i64 %high, 6
  %above = and i64 %low, 63
  %head = shl i64 -1, %above
  %up_to = and i64 %high, 63
  %behind = sub i64 63, %up_to
  %tail = lshr i64 -1, %behind
  %is_one = icmp eq i64 %first, %last
  %both = and i64 %head, %tail
  %first_mask = select i1 %is_one, i64 %both, i64 %head
  %last_mask = select i1 %is_one, i64 0, i64 %tail
  %first_at = getelementptr i64, ptr %bits, i64 %first
  %first_word = load i64, ptr %first_at
  %last_at = getelementptr i64, ptr %bits, i64 %last
  %last_word = load i64, ptr %last_at
  %of_first = and i64 %first_word, %first_mask
  %of_last = and i64 %last_word, %last_mask
  %ends = or i64 %of_first, %of_last
  %second = add i64 %first, 1
  %is_short = icmp uge i64 %second, %last
  br i1 %is_short, label %done, label %loop
loop:
  %k = phi i64 [ %second, %entry ], [ %next, %loop ]
  %some = phi i64 [ %ends, %entry ], [ %more, %loop ]
  %at = getelementptr i64, ptr %bits, i64 %k
  %word = load i64, ptr %at
  %more = or i64 %some, %word
  %next = add i64 %k, 1
  %is_end = icmp eq i64 %next, %last
  br i1 %is_end, label %done, label %loop
done:
  %all = phi i64 [ %ends, %entry ], [ %more, %loop ]
  %is_some = icmp ne i64 %all, 0
  ret i1 %is_some
}}
define internal i1 @note(ptr %mailbox, i64 %target, i64 %source, i64 %length, i64 %way) {{
entry:
  %field = getelementptr i64, ptr %mailbox, i64 {mailbox.UNWRITTEN}
  %bits_at = load i64, ptr %field
  %bits = inttoptr i64 %bits_at to ptr
  %begin = lshr i64 %target, 1
  %from = lshr i64 %source, 1
  %odd = and i64 %target, 1
  %bytes = add i64 %odd, %length
  %rounded = add i64 %bytes, 1
  %num = lshr i64 %rounded, 1
  %further = call i64 @llvm.umax.i64(i64 %begin, i64 %from)
  %end = add i64 %further, %num
  %is_none = icmp eq i64 %length, 0
  %is_outside = icmp ugt i64 %end, {MEMORY_WORDS}
  %skips = or i1 %is_none, %is_outside
  br i1 %skips, label %nothing, label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %step ]
  %found = phi i1 [ false, %entry ], [ %some, %step ]
  %word = add i64 %begin, %k
  %of = add i64 %from, %k
  %own_at = lshr i64 %word, 3
  %own_byte = getelementptr i8, ptr %bits, i64 %own_at
  %own_low = and i64 %word, 7
  %own_shift = trunc i64 %own_low to i8
  %own_mask = shl i8 1, %own_shift
  %of_at = lshr i64 %of, 3
  %of_byte = getelementptr i8, ptr %bits, i64 %of_at
  %of_low = and i64 %of, 7
  %of_shift = trunc i64 %of_low to i8
  %of_bits = load i8, ptr %of_byte
  %of_moved = lshr i8 %of_bits, %of_shift
  %of_bit = trunc i8 %of_moved to i1
  %some = or i1 %found, %of_bit
  switch i64 %way, label %step [ i64 1, label %write i64 2, label %begin_new i64 3, label %copy ]
copy:
  br i1 %of_bit, label %begin_new, label %write
write:
  %kept = load i8, ptr %own_byte
  %others = xor i8 %own_mask, -1
  %cleared = and i8 %kept, %others
  store i8 %cleared, ptr %own_byte
  br label %step
begin_new:
  %old = load i8, ptr %own_byte
  %set = or i8 %old, %own_mask
  store i8 %set, ptr %own_byte
  br label %step
step:
  %next = add i64 %k, 1
  %is_last = icmp eq i64 %next, %num
  br i1 %is_last, label %done, label %loop
done:
  ret i1 %some
nothing:
  ret i1 false
}}
"""
"""What tells the host; of an access outside of its variable, whether it traps, too;
whether some words from one to another have never been written; what notes which are, and says
whether some of the source are not."""


def check(writer: FunctionWriter, instruction: Instruction) -> str:
    """``check``"""
    _CHECKS[instruction.names[0]](writer, instruction)
    return ""


@contextmanager
def _when(writer: FunctionWriter, condition: str) -> Iterator[None]:
    """Code written meanwhile runs where a condition holds."""
    body, some, end = writer.body, writer.body.fresh_label(), writer.body.fresh_label()
    body.branch(condition, some, end)
    body.begin(some)
    yield
    body.jump(end)
    body.begin(end)


def _tell(
    writer: FunctionWriter, instruction: Instruction, condition: str, finding: int, *numbers: str
) -> None:
    """Tell the host of a finding, with two numbers of type i64, where a condition holds."""
    with _when(writer, condition):
        values = ", ".join(f"i64 {value}" for value in (instruction.place, finding, *numbers))
        writer.body.do(f"call void @tell(ptr %mailbox, {values}, i64 {writer.cycles_so_far()})")


def _wide(writer: FunctionWriter, instruction: Instruction) -> list[str]:
    """The operands as numbers of type i64."""
    return [raw_bits(writer.body, writer.spell(arg), arg.type, 64) for arg in instruction.args]


def _outside(instruction: Instruction) -> int:
    return finding_of(OUTSIDE[instruction.names[1]])


def _inside(writer: FunctionWriter, instruction: Instruction) -> None:
    """What is inside of its variable is inside of memory, so the access needs no other check."""
    body = writer.body
    address, begin, size, length = instruction.args
    if not isinstance(length, Constant) or not isinstance(size, Constant):
        _copied_inside(writer, instruction)
        return
    assert isinstance(length.value, int)
    assert isinstance(size.value, int)
    offset = body.value(f"sub i16 {writer.spell(address)}, {writer.spell(begin)}")
    last = size.value - length.value
    if length.value > 1:
        # Rotated, odd offsets come behind all memory, so that one comparison finds them, too.
        offset = body.value(f"call i16 @llvm.fshr.i16(i16 {offset}, i16 {offset}, i16 1)")
        last //= WORD_BYTES
    good, bad = body.fresh_label(), body.fresh_label()
    fits = body.value(f"icmp ule i16 {offset}, {last}") if last >= 0 else "false"
    body.branch(fits, good, bad)
    body.begin(bad)
    memory = WORD_BYTES * writer.unit.module.memory_words
    where = [raw_bits(body, writer.spell(arg), Type.PTR, 64) for arg in (address, begin)]
    numbers = (instruction.place, _outside(instruction), *where, length.value, memory)
    values = ", ".join(f"i64 {value}" for value in (*numbers, writer.cycles_so_far()))
    body.branch(body.value(f"call i1 @outside(ptr %mailbox, {values})"), "trapped", good)
    body.begin(good)
    writer.inside.add((address, length.value))


def _copied_inside(writer: FunctionWriter, instruction: Instruction) -> None:
    body = writer.body
    address, begin, size, length = _wide(writer, instruction)
    offset = body.value(f"and i64 {body.value(f'sub i64 {address}, {begin}')}, 65535")
    is_out = body.value(f"icmp ugt i64 {body.value(f'add i64 {offset}, {length}')}, {size}")
    _tell(writer, instruction, is_out, _outside(instruction), address, begin)


def _same(writer: FunctionWriter, instruction: Instruction) -> None:
    body = writer.body
    address, root, length = _wide(writer, instruction)
    last = body.value(f"sub i64 {body.value(f'add i64 {address}, {length}')}, 1")
    far = body.value(f"call i64 @llvm.umax.i64(i64 {last}, i64 {root})")
    lies = body.value(f"icmp ult i64 {far}, {WORD_BYTES * MEMORY_WORDS}")
    some = body.value(f"icmp ne i64 {length}, 0")
    with _when(writer, body.value(f"and i1 {lies}, {some}")), mapped(body) as head:
        own, *ends = (_variable_at(writer, head, byte) for byte in (root, address, last))
        others = [body.value(f"icmp ne i16 {end}, {own}") for end in ends]
        is_other = body.value(f"or i1 {others[0]}, {others[1]}")
        is_known = body.value(f"icmp ne i16 {own}, {mailbox.NO_VARIABLE}")
        is_wrong = body.value(f"and i1 {is_other}, {is_known}")
        _tell(writer, instruction, is_wrong, _outside(instruction), address, root)


def _variable_at(writer: FunctionWriter, head: str, byte: str) -> str:
    """Number of the variable of a byte of memory; `head` is the map's address."""
    body = writer.body
    word = body.value(f"lshr i64 {byte}, 1")
    numbers = body.value(f"getelementptr i64, ptr {head}, i64 1")
    return body.value(
        f"load i16, ptr {body.value(f'getelementptr i16, ptr {numbers}, i64 {word}')}"
    )


def _flight(writer: FunctionWriter, instruction: Instruction) -> None:
    body, way, numbers = writer.body, instruction.names[1], _wide(writer, instruction)
    finding = finding_of(MET_IN_FLIGHT[way])
    used = read(body, _USED[way])
    with _when(writer, body.value(f"icmp ne i64 {used}, 0")):
        if way != STREAM:
            used = body.value(f"and i64 {used}, {_stretches(writer, *numbers)}")
        is_some = body.value(f"icmp ne i64 {used}, 0")
        _tell(writer, instruction, is_some, finding, *numbers)


def _stretches(writer: FunctionWriter, address: str, length: str) -> str:
    """A bit for each stretch of memory that some bytes lie in."""
    body, shift = writer.body, read(writer.body, mailbox.STRETCH_SHIFT)
    last, bits = body.value(f"sub i64 {body.value(f'add i64 {address}, {length}')}, 1"), []
    for byte, bit in ((address, 1), (last, 2)):
        number = body.value(f"lshr i64 {byte}, {shift}")
        number = body.value(f"call i64 @llvm.umin.i64(i64 {number}, i64 {mailbox.LAST_STRETCH})")
        bits.append(body.value(f"shl i64 {bit}, {number}"))
    return body.value(f"sub i64 {bits[1]}, {bits[0]}")


def _written(writer: FunctionWriter, instruction: Instruction) -> None:
    way, (*addresses, length) = instruction.names[1], _wide(writer, instruction)
    values = (addresses[0], addresses[-1], length, _WAYS.index(way))
    arguments = ", ".join(f"i64 {value}" for value in values)
    if way not in (READ, WRITE):
        writer.body.value(f"call i1 @note(ptr %mailbox, {arguments})")
        return
    with _when(writer, _is_unwritten(writer, addresses[0], instruction.args[1])):
        is_unwritten = writer.body.value(f"call i1 @note(ptr %mailbox, {arguments})")
        if way == READ:
            finding = finding_of(Finding.READ_UNWRITTEN)
            _tell(writer, instruction, is_unwritten, finding, addresses[0], length)


def _is_unwritten(writer: FunctionWriter, address: str, length: Value) -> str:
    """Whether some of a value's words have never been written, seen in one look at their bits."""
    assert isinstance(length, Constant)
    assert isinstance(length.value, int)
    body = writer.body
    book = body.value(f"inttoptr i64 {read(body, mailbox.UNWRITTEN)} to ptr")
    place = body.value(f"getelementptr i8, ptr {book}, i64 {body.value(f'lshr i64 {address}, 4')}")
    low = body.value(f"trunc i64 {address} to i32")
    first = body.value(f"and i32 {body.value(f'lshr i32 {low}, 1')}, 7")
    bits = body.value(f"lshr i32 {body.value(f'load i32, ptr {place}, align 1')}, {first}")
    # An odd address of more than a byte is in one word more, before it ends the program.
    more = body.value(f"and i32 {low}, {length.value > 1:d}")
    beyond = body.value(f"shl i32 {1 << (length.value + 1) // WORD_BYTES}, {more}")
    own = body.value(f"and i32 {bits}, {body.value(f'sub i32 {beyond}, 1')}")
    return body.value(f"icmp ne i32 {own}, 0")


def _unset(writer: FunctionWriter, instruction: Instruction) -> None:
    has_none = writer.body.value(f"xor i1 {writer.spell(instruction.args[0])}, true")
    _tell(writer, instruction, has_none, finding_of(Finding.LOCAL_UNSET), "0", "0")


def _divisor(writer: FunctionWriter, instruction: Instruction) -> None:
    is_zero = writer.body.value(f"icmp eq i64 {_wide(writer, instruction)[0]}, 0")
    _tell(writer, instruction, is_zero, finding_of(Finding.DIVISION_BY_ZERO), "0", "0")


def _shift(writer: FunctionWriter, instruction: Instruction) -> None:
    distance, width = _wide(writer, instruction)[0], instruction.names[1]
    is_too_far = writer.body.value(f"icmp uge i64 {distance}, {width}")
    _tell(writer, instruction, is_too_far, finding_of(Finding.SHIFT_TOO_FAR), distance, width)


def _wrap(writer: FunctionWriter, instruction: Instruction) -> None:
    """In 64 bits the result is exact; taken from its low bits again, it shows what was lost."""
    body, (op, name) = writer.body, instruction.names[1:]
    narrow, letter = f"i{WIDTHS[Type(name)]}", "s" if Type(name) in SIGNED else "z"
    a, b = (
        body.value(f"{letter}ext {narrow} {writer.spell(arg)} to i64") for arg in instruction.args
    )
    exact = body.value(f"{op} i64 {a}, {b}")
    low = body.value(f"trunc i64 {exact} to {narrow}")
    held = body.value(f"{letter}ext {narrow} {low} to i64")
    is_lost = body.value(f"icmp ne i64 {exact}, {held}")
    finding = finding_of(Finding.WRAPPED, wrap_of(op, name))
    _tell(writer, instruction, is_lost, finding, *_wide(writer, instruction))


def _stream(writer: FunctionWriter, instruction: Instruction) -> None:
    is_open = writer.body.value(f"icmp ne i64 {read(writer.body, mailbox.STREAM_OPEN)}, 0")
    _tell(writer, instruction, is_open, finding_of(Finding.STREAM_OPENED_TWICE), "0", "0")


def _width(writer: FunctionWriter, instruction: Instruction) -> None:
    body, (name, place) = writer.body, instruction.names[1:]
    op, dsd = VECTOR_OPS[name], writer.spell(instruction.args[0])
    wanted = element_words((op.destination, *op.sources)[int(place)])
    word = body.value(f"extractelement <8 x i16> {dsd}, i64 {descriptor.WORD_BASE}")
    base = body.value(f"zext i16 {word} to i64")
    lies = body.value(f"icmp ult i64 {base}, {MEMORY_WORDS}")
    with _when(writer, lies), mapped(body) as head:
        variable = _variable_at(writer, head, body.value(f"shl i64 {base}, 1"))
        own = body.value(f"and i16 {variable}, {mailbox.WIDTH_MASK}")
        # One of the two widths, and not the wanted one; that of no variable is neither.
        differs: list[str] = []
        is_other = body.value(f"icmp eq i16 {own}, {_NUM_WIDTHS - wanted}")
        # A cast pointer's descriptor may go from element to element, and take a part of each.
        for index, number in (
            (descriptor.WORD_STRIDE, _NUM_WIDTHS - wanted),
            (descriptor.WORD_ELEMENT, wanted),
        ):
            word = body.value(f"extractelement <8 x i16> {dsd}, i64 {index}")
            differs.append(body.value(f"icmp ne i16 {word}, {number}"))
        is_told = body.value(f"or i1 {differs[0]}, {differs[1]}")
        is_other = body.value(f"and i1 {is_other}, {is_told}")
        shifted = body.value(f"shl i64 {base}, {mailbox.OTHER_SHIFT}")
        first = body.value(f"or i64 {shifted}, {op.code}")
        finding = finding_of(Finding.ELEMENT_WIDTH, int(place))
        _tell(writer, instruction, is_other, finding, first, str(_NUM_WIDTHS - wanted))


def _extent(writer: FunctionWriter, instruction: Instruction) -> None:
    name, place = instruction.names[1:]
    base, extent, length = (int(writer.spell(arg)) for arg in instruction.args)
    first = VECTOR_OPS[name].code | base << mailbox.OTHER_SHIFT
    both = extent | length << mailbox.OTHER_SHIFT
    finding = finding_of(Finding.EXTENTS, int(place))
    _tell(writer, instruction, "true", finding, str(first), str(both))


_CHECKS: Final[dict[str, Callable[[FunctionWriter, Instruction], None]]] = {
    "inside": _inside,
    "same": _same,
    "flight": _flight,
    "written": _written,
    "unset": _unset,
    "divisor": _divisor,
    "shift": _shift,
    "wrap": _wrap,
    "stream": _stream,
    "width": _width,
    "extent": _extent,
}
