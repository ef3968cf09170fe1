"""``check``: the compiled form of :mod:`openwafer.sdk.ir.checking`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, element_words
from openwafer.sdk.codegen.floats import raw_bits
from openwafer.sdk.codegen.functions import FunctionWriter
from openwafer.sdk.codegen.mailboxes import read, write
from openwafer.sdk.codegen.vectors import mapped, show
from openwafer.sdk.ir.function import Instruction
from openwafer.sdk.program import descriptor, mailbox
from openwafer.sdk.program.mailbox import Finding, finding_of

_NUM_WIDTHS: Final = 3
"""The sum of both widths of elements, in words."""


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
    now = writer.cycles()
    with _when(writer, condition):
        write(writer.body, mailbox.CYCLE, now)
        with mapped(writer.body) as head:
            first, second = numbers
            show(writer.body, head, str(instruction.place), finding, (first, second))


def _wide(writer: FunctionWriter, instruction: Instruction) -> list[str]:
    """The operands as numbers of type i64."""
    return [raw_bits(writer.body, writer.spell(arg), arg.type, 64) for arg in instruction.args]


def _outside(instruction: Instruction) -> int:
    is_read = instruction.names[1] == "read"
    return finding_of(Finding.READ_OUTSIDE if is_read else Finding.WRITE_OUTSIDE)


def _inside(writer: FunctionWriter, instruction: Instruction) -> None:
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
    now = writer.cycles()
    with _when(writer, body.value(f"and i1 {lies}, {some}")), mapped(body) as head:
        own, *ends = (_variable_at(writer, head, byte) for byte in (root, address, last))
        others = [body.value(f"icmp ne i16 {end}, {own}") for end in ends]
        is_other = body.value(f"or i1 {others[0]}, {others[1]}")
        is_known = body.value(f"icmp ne i16 {own}, {mailbox.NO_VARIABLE}")
        with _when(writer, body.value(f"and i1 {is_other}, {is_known}")):
            write(body, mailbox.CYCLE, now)
            place = str(instruction.place)
            show(body, head, place, _outside(instruction), (address, root))


def _variable_at(writer: FunctionWriter, head: str, byte: str) -> str:
    """Number of the variable of a byte of memory; `head` is the map's address."""
    body = writer.body
    word = body.value(f"lshr i64 {byte}, 1")
    numbers = body.value(f"getelementptr i64, ptr {head}, i64 1")
    return body.value(
        f"load i16, ptr {body.value(f'getelementptr i16, ptr {numbers}, i64 {word}')}"
    )


def _flight(writer: FunctionWriter, instruction: Instruction) -> None:
    is_some = writer.body.value(f"icmp ne i64 {read(writer.body, mailbox.IN_FLIGHT)}, 0")
    is_read = instruction.names[1] == "read"
    kind = Finding.READ_IN_FLIGHT if is_read else Finding.WRITE_IN_FLIGHT
    _tell(writer, instruction, is_some, finding_of(kind), *_wide(writer, instruction))


def _divisor(writer: FunctionWriter, instruction: Instruction) -> None:
    is_zero = writer.body.value(f"icmp eq i64 {_wide(writer, instruction)[0]}, 0")
    _tell(writer, instruction, is_zero, finding_of(Finding.DIVISION_BY_ZERO), "0", "0")


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
    now = writer.cycles()
    with _when(writer, lies), mapped(body) as head:
        variable = _variable_at(writer, head, body.value(f"shl i64 {base}, 1"))
        own = body.value(f"and i16 {variable}, {mailbox.WIDTH_MASK}")
        # One of the two widths, and not the wanted one; that of no variable is neither.
        is_other = body.value(f"icmp eq i16 {own}, {_NUM_WIDTHS - wanted}")
        with _when(writer, is_other):
            write(body, mailbox.CYCLE, now)
            shifted = body.value(f"shl i64 {base}, {mailbox.OTHER_SHIFT}")
            first = body.value(f"or i64 {shifted}, {op.code}")
            finding = finding_of(Finding.ELEMENT_WIDTH, int(place))
            second = str(_NUM_WIDTHS - wanted)
            show(body, head, str(instruction.place), finding, (first, second))


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
    "divisor": _divisor,
    "stream": _stream,
    "width": _width,
    "extent": _extent,
}
