"""Reading and writing words of the mailbox and of the PE's memory."""

from typing import Final

from openwafer.sdk.codegen.body import Body, llvm_type
from openwafer.sdk.codegen.floats import from_raw_bits, raw_bits
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.numbers import WIDTHS, num_words
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Trap

PARAMETERS: Final = "ptr noalias %mailbox, ptr noalias %memory"
ARGUMENTS: Final = "ptr %mailbox, ptr %memory"
CODE_PARAMETERS: Final = f"{PARAMETERS}, ptr noalias %links"
"""Of an image's functions: the table that they find those callees in that images differ in."""
CODE_ARGUMENTS: Final = f"{ARGUMENTS}, ptr %links"

SUPPORT: Final = f"""\
define internal void @trap(ptr %mailbox, i64 %kind, i64 %value, i64 %place) cold noinline {{
  %trap = getelementptr i64, ptr %mailbox, i64 {mailbox.TRAP}
  store i64 %kind, ptr %trap
  %trap_value = getelementptr i64, ptr %mailbox, i64 {mailbox.TRAP_VALUE}
  store i64 %value, ptr %trap_value
  %trap_place = getelementptr i64, ptr %mailbox, i64 {mailbox.PLACE}
  store i64 %place, ptr %trap_place
  ret void
}}
define internal i64 @random(ptr %mailbox) noinline nounwind {{
entry:
  %field = getelementptr i64, ptr %mailbox, i64 {mailbox.RANDOM}
  %start = load i64, ptr %field
  br label %loop
loop:
  %state = phi i64 [ %start, %entry ], [ %next, %loop ]
  %step = phi i64 [ 0, %entry ], [ %more, %loop ]
  %shifted = shl i64 %state, 1
  %first = lshr i64 %state, 22
  %second = lshr i64 %state, 17
  %mixed = xor i64 %first, %second
  %bit = and i64 %mixed, 1
  %joined = or i64 %shifted, %bit
  %next = and i64 %joined, 4294967295
  %more = add i64 %step, 1
  %is_done = icmp eq i64 %more, {mailbox.RANDOM_STEPS}
  br i1 %is_done, label %end, label %loop
end:
  store i64 %next, ptr %field
  ret i64 %start
}}
"""


def field(body: Body, index: int) -> str:
    """Address of a word of the mailbox."""
    return body.value(f"getelementptr i64, ptr %mailbox, i64 {index}")


def read(body: Body, index: int) -> str:
    """A word of the mailbox."""
    return body.value(f"load i64, ptr {field(body, index)}")


def write(body: Body, index: int, value: str) -> None:
    """Set a word of the mailbox."""
    body.do(f"store i64 {value}, ptr {field(body, index)}")


def add(body: Body, index: int, value: str) -> None:
    """Add to a word of the mailbox."""
    write(body, index, body.value(f"add i64 {read(body, index)}, {value}"))


def trap(body: Body, kind: Trap | str, value: str, place: str) -> None:
    """Note why the code stops; `value`, `place` and a `kind` that is computed are of type i64."""
    number = kind.value if isinstance(kind, Trap) else kind
    body.do(f"call void @trap(ptr %mailbox, i64 {number}, i64 {value}, i64 {place})")


def word_address(body: Body, index: str, llvm: str) -> str:
    """Native address of a word of the PE's memory."""
    return _address(body, index, llvm, "i16")


def byte_address(body: Body, index: str, llvm: str) -> str:
    """Native address of a byte of the PE's memory."""
    return _address(body, index, llvm, "i8")


def _address(body: Body, index: str, llvm: str, unit: str) -> str:
    if llvm != "i64":
        index = body.value(f"zext {llvm} {index} to i64")
    return body.value(f"getelementptr {unit}, ptr %memory, i64 {index}")


def load(body: Body, address: str, kind: Type) -> str:
    """A value in the PE's memory, at a native address."""
    if WIDTHS[kind] > 64:
        return body.value(f"load {llvm_type(kind)}, ptr {address}, align 2")
    width = 16 * num_words(kind)
    bits = body.value(f"load i{width}, ptr {address}, align 2")
    return from_raw_bits(body, bits, width, kind)


def store(body: Body, address: str, value: str, kind: Type) -> None:
    """Write a value to the PE's memory, at a native address."""
    if WIDTHS[kind] > 64:
        body.do(f"store {llvm_type(kind)} {value}, ptr {address}, align 2")
        return
    width = 16 * num_words(kind)
    body.do(f"store i{width} {raw_bits(body, value, kind, width)}, ptr {address}, align 2")
