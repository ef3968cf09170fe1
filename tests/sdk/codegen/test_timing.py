"""Cycles of scalar code follow the machine's figures."""

import pytest

from openwafer.sdk.arch.generation import WSE2
from openwafer.sdk.ir.function import Address, Constant, Instruction, Register, Type
from openwafer.sdk.ir.timing import block_cycles, edge_cycles, instruction_cycles
from openwafer.sdk.program import mailbox
from tests.sdk.codegen.oracle import Native, read_module, run_native

_LOOP = """
global @x 16 3
entry &main
fn &main($n: i16) void {
  slot $i: i16
head:
  jump[test] !0
test:
  %0 = get[i] i16 !0
  %1 = get[n] i16 !0
  %2 = lt bool %0, %1 !0
  branch[body, done] %2 !0
body: loop_end
  %3 = load i16 @x !0
  %4 = load i16 @x+1 !0
  %5 = add i16 %3, %4 !0
  store @x+2, %5 !0
  %6 = get[i] i16 !0
  %7 = add i16 %6, 1:i16 !0
  set[i] %7 !0
  jump[test] !0
done:
  return !0
}
"""


def test_load_load_add_store_takes_seven_cycles() -> None:
    body = read_module(_LOOP).functions["main"].blocks[2]
    assert block_cycles(body, WSE2) == 7 + 1


def test_a_loop_costs_its_back_edge_once_an_iteration() -> None:
    function = read_module(_LOOP).functions["main"]
    test, body = edge_cycles(function, 1, WSE2), edge_cycles(function, 2, WSE2)
    assert test == (3, 6)
    assert test[0] + body[0] == WSE2.loop_cycles


@pytest.mark.parametrize("count", [0, 1, 10])
def test_the_clock_of_native_code_counts_blocks_and_edges(count: int) -> None:
    trail = run_native(Native(read_module(_LOOP)), arguments=[count])
    an_iteration = 1 + WSE2.loop_cycles + 8
    assert trail.box[mailbox.CYCLE] == count * an_iteration + 1 + 6


def test_division_by_software_costs_more_than_a_multiplication() -> None:
    sides = (Register(0, Type.I16), Register(1, Type.I16))
    multiply, divide = (
        instruction_cycles(Instruction(op, sides, 2, Type.I16), WSE2) for op in ("mul", "div")
    )
    assert (multiply, divide) == (1, 48)


def test_a_float_division_takes_the_machines_cycles() -> None:
    sides = (Register(0, Type.F32), Register(1, Type.F32))
    assert instruction_cycles(Instruction("div", sides, 2, Type.F32), WSE2) == WSE2.divide_cycles


def test_a_copy_takes_a_load_and_a_store_for_each_32_bits() -> None:
    copy = Instruction("copy", (Address("a"), Address("b"), Constant(6, Type.U16)))
    assert instruction_cycles(copy, WSE2) == 3 * 4
