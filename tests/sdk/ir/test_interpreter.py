"""The reference interpreter runs modules behind the binary interface of compiled code."""

import numpy as np
import pytest

from openwafer.sdk.arch.generation import WSE2
from openwafer.sdk.ir.interpreter import Interpreter
from openwafer.sdk.ir.text import parse
from openwafer.sdk.ir.verifier import verify
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Outcome, Request, Trap

HEAD = 'module "m" stack 64 memory 256\nplace "m.csl" 1 1 "f"\n'
DATA = "global @a 16 8 = 1 2 3 4\nglobal @s 24 2\nentry &main\n"


def interpreter(text: str, *, splits: bool = False) -> Interpreter:
    module = parse(HEAD + DATA + text)
    verify(module)
    return Interpreter(module, (splits,), WSE2)


class Pe:
    """One PE's state and the interpreter that runs it."""

    def __init__(self, text: str, *, splits: bool = False) -> None:
        self.code = interpreter(text, splits=splits)
        self.box = np.zeros(mailbox.MAILBOX_WORDS, np.int64)
        self.memory = np.zeros(256, np.uint16)
        self.memory[16:20] = (1, 2, 3, 4)

    def start(self, *args: int) -> Outcome:
        self.box[mailbox.ARGUMENTS : mailbox.ARGUMENTS + len(args)] = args
        return self.code.run(0, self.box, self.memory, 0, is_resume=False)

    def resume(self) -> Outcome:
        return self.code.run(0, self.box, self.memory, 0, is_resume=True)


SUM_TO = """
fn &main($n: i16) void {
  slot $i: i16
  slot $sum: i16
head:
  %0 = get[i] i16 !0
  %1 = get[n] i16 !0
  %2 = lt bool %0, %1 !0
  branch[body, end] %2 !0
body: loop_end
  %3 = get[i] i16 !0
  %4 = add i16 %3, 1:i16 !0
  set[i] %4 !0
  %5 = get[sum] i16 !0
  %6 = add i16 %5, %4 !0
  set[sum] %6 !0
  jump[head] !0
end:
  %7 = get[sum] i16 !0
  store @s, %7 !0
  return !0
}
"""


def test_a_loop_sums_up_to_its_argument() -> None:
    pe = Pe(SUM_TO)
    assert pe.start(10) is Outcome.FINISHED
    assert pe.memory[24] == 55


SPLIT = """
fn &main($low: u16, $high: i16) void {
head:
  %0 = get[high] i16 !0
  store @s, %0 !0
  return !0
}
"""


def test_a_wavelet_is_split_low_half_first() -> None:
    pe = Pe(SPLIT, splits=True)
    pe.start(0x8001_0002)
    assert pe.memory[24] == 0x8001


SENDS = """
fn &main() void {
head:
  call[send] 7:i16 !0
  store @s, 1:i16 !0
  return !0
}
fn &send($x: i16) void {
head:
  %0 = get[x] i16 !0
  vector[mov16, fabric, async, activate] dsd(3, 5, 4, 0, 2, 1, 0, 0), %0, 9:u16 !0
  return !0
}
"""


def test_a_request_suspends_the_whole_chain_of_calls() -> None:
    pe = Pe(SENDS)
    assert pe.start() is Outcome.SUSPENDED
    assert (pe.box[mailbox.REQUEST], pe.box[mailbox.ACTIVATE]) == (Request.VECTOR, 9)
    assert pe.memory[24] == 0
    assert pe.resume() is Outcome.FINISHED
    assert pe.memory[24] == 1


VECTOR = """
fn &main() void {
head:
  vector[add16] dsd(1, 16, 4, 0, 1, 1, 0, 0), dsd(1, 16, 4, 0, 1, 1, 0, 0), 10:i16 !0
  return !0
}
"""


def test_a_vector_operation_on_memory_runs_at_once() -> None:
    pe = Pe(VECTOR)
    assert pe.start() is Outcome.FINISHED
    assert pe.memory[16:20].tolist() == [11, 12, 13, 14]


REDUCTION = """
fn &main() void {
head:
  vector[add16] @s, 5:i16, dsd(1, 16, 4, 0, 1, 1, 0, 0) !0
  return !0
}
"""


def test_a_reduction_begins_with_its_scalar() -> None:
    pe = Pe(REDUCTION)
    pe.start()
    assert pe.memory[24] == 15


TRAPS = {
    Trap.ASSERTION: "assert 0:bool !0\n  return !0",
    Trap.OUT_OF_BOUNDS: "store 512:ptr, 1:i16 !0\n  return !0",
    Trap.UNREACHABLE: "unreachable !0",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_fault_stops_the_pe_with_its_reason(trap: Trap) -> None:
    pe = Pe(f"fn &main() void {{\nhead:\n  {TRAPS[trap]}\n}}")
    assert pe.start() is Outcome.TRAPPED
    assert pe.box[mailbox.TRAP] == trap


RECURSION = """
fn &main() void {
  slot $frame: 40 words
head:
  call[main] !0
  return !0
}
"""


def test_endless_recursion_overflows_the_stack() -> None:
    pe = Pe(RECURSION)
    pe.start()
    assert pe.box[mailbox.TRAP] == Trap.STACK_OVERFLOW


LENGTHS = """
fn &main() void {
head:
  vector[mov16] dsd(1, 16, 2, 0, 1, 1, 0, 0), dsd(1, 18, 1, 0, 1, 1, 0, 0) !0
  return !0
}
"""


def test_the_length_is_that_of_the_first_source_that_has_one() -> None:
    pe = Pe(LENGTHS)
    pe.start()
    assert pe.memory[16:20].tolist() == [3, 2, 3, 4]
