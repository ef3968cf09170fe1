"""Compiled code goes on behind its requests, through any chain of calls."""

import numpy as np
import pytest

from openwafer.sdk.codegen.objects import Effort
from openwafer.sdk.ir.suspension import (
    functions_in_loops,
    is_request,
    isolate,
    live_slots,
    recursive_functions,
    suspending_functions,
)
from openwafer.sdk.ir.text import render
from openwafer.sdk.ir.verifier import verify
from openwafer.sdk.program.mailbox import Outcome
from tests.sdk.codegen.oracle import STACK, Native, Trail, assert_agrees, read_module, run_native

_CHAIN = """
global @x 16 8
entry &outer
fn &outer($n: u16) void {
  slot $i: u16
  slot $sum: u32
head:
  jump[test] !0
test:
  %0 = get[i] u16 !0
  %1 = get[n] u16 !0
  %2 = lt bool %0, %1 !0
  branch[body, done] %2 !0
body: loop_end
  %3 = get[i] u16 !0
  %4 = add u16 %3, 100:u16 !0
  %5 = call[middle] u32 %3, %4 !1
  %6 = get[sum] u32 !0
  %7 = add u32 %6, %5 !0
  set[sum] %7 !0
  %8 = add u16 %3, 1:u16 !0
  set[i] %8 !0
  jump[test] !0
done:
  %9 = get[sum] u32 !0
  store @x, %9 !0
  return !0
}
fn &middle($a: u16, $b: u16) u32 {
  slot $buffer: 4 words
  slot $d: dsd
head:
  %0 = slot_address[buffer] ptr !0
  %1 = get[a] u16 !0
  store %0, %1 !0
  set[d] dsd(3, 5, 4, 0, 2, 1, 0, 0) !0
  %2 = call[inner] u16 %1 !2
  %3 = get[d] dsd !0
  vector[mov16, fabric, async, activate] %3, dsd(1, 16, 4, 0, 1, 1, 0, 0), 9:u16 !5
  %4 = load u16 %0 !0
  %5 = get[b] u16 !0
  %6 = mul u16 %4, %5 !0
  %7 = add u16 %6, %2 !0
  %8 = cast u32 %7 !0
  return %8 !0
}
fn &inner($a: u16) u16 {
head:
  %0 = get[a] u16 !0
  %1 = call[plain] u16 %0 !3
  %2 = read_register u16 %1 !4
  %3 = add u16 %2, %1 !0
  write_register %3, %0 !5
  return %3 !0
}
fn &plain($a: u16) u16 {
  slot $hidden: 2 words
head:
  %0 = get[a] u16 !0
  %1 = slot_address[hidden] ptr !0
  store %1, %0 !0
  %2 = load u16 %1 !0
  %3 = xor u16 %2, 4660:u16 !0
  return %3 !0
}
"""


def test_a_chain_of_calls_is_resumed_where_it_waited() -> None:
    trail = assert_agrees(_CHAIN, arguments=[5])
    assert trail.outcomes == [Outcome.SUSPENDED] * 15 + [Outcome.FINISHED]


@pytest.mark.parametrize("effort", list(Effort))
def test_every_effort_does_the_same(effort: Effort) -> None:
    native = Native(read_module(_CHAIN), effort=effort)
    trail = run_native(native, arguments=[4])
    assert np.array_equal(trail.data, assert_agrees(_CHAIN, arguments=[4]).data)


def test_only_functions_that_reach_a_request_suspend() -> None:
    assert suspending_functions(read_module(_CHAIN)) == {"outer", "middle", "inner"}


def test_two_pes_wait_in_the_same_code_at_once() -> None:
    native = Native(read_module(_CHAIN))
    alone = run_native(native, arguments=[3])
    first, second = (_begin(native, 3) for _ in range(2))
    for trail in (first, second, second, first):
        native.step(trail, 0, is_resume=True)
    assert np.array_equal(first.memory[:16], second.memory[:16])
    assert alone.outcomes[-1] is Outcome.FINISHED


def _begin(native: Native, count: int) -> Trail:
    trail = Trail()
    trail.box[16] = count
    native.step(trail, 0, is_resume=False)
    return trail


_INDIRECT = """
global @x 16 2
entry &main
fn &main($f: fn) void {
head:
  %0 = get[f] fn !0
  %1 = call_indirect u32 %0, 5:u16, 6:u32 !0
  store @x, %1 !0
  return !0
}
fn &waits($a: u16, $b: u32) u32 {
head:
  %0 = get[a] u16 !0
  %1 = read_register u16 %0 !0
  %2 = cast u32 %1 !0
  %3 = get[b] u32 !0
  %4 = add u32 %2, %3 !0
  return %4 !0
}
fn &runs($a: u16, $b: u32) u32 {
head:
  %0 = get[b] u32 !0
  return %0 !0
}
"""


@pytest.mark.parametrize("number", [1, 2])
def test_an_indirect_call_reaches_functions_that_suspend_and_others(number: int) -> None:
    assert_agrees(_INDIRECT, arguments=[number])


_REQUESTS = """
global @x 16 8
entry &main
fn &main($p: ptr) void {
  slot $four: dsd4
head:
  %0 = get[p] ptr !0
  %1 = vector[fadds, fabric] bool %0, 1065353216:f32, dsd(2, 3, 9, 0, 1, 2, 0, 0) !1
  %2 = cast u16 %1 !0
  store @x, %2 !0
  vector[fmach, fabric, async, unblock, index, microthread, priority]
    dsr(3), dsr(4), fifo(1), 15360:f16, 258:u16, 7:u16, 2:u16, 1:u16 !2
  vector[mov32, fabric, terminate_on_control, control_activate, control_unblock, filter]
    @x, dsd(2, 3, 9, 0, 1, 2, 0, 0), 4:u16, 5:u16 !2
  set[four] dsd4(4, 16, 2, 0, 0, 1, 0, 0, 2, 2, 0, 0, 1, 65535, 0, 0) !0
  %3 = get[four] dsd4 !0
  vector[mov16, fabric] %3, -1:i16 !3
  load_dsr[1, 4, async, save_address, activate] dsd(1, 16, 4, 0, 1, 1, 0, 0), 9:u16 !4
  load_dsr[0, 4, single_step] dsd(1, 16, 4, 0, 1, 1, 0, 0) !4
  %4 = read_register u16 1000:u16 !0
  write_register 1001:u16, %4 !0
  flush_queue 3:u16 !0
  set_fifo_lengths[2] -1:i16, 40:i16 !0
  print @x, 4:u16 !0
  return !0
}
"""


def test_every_kind_of_request_fills_the_mailbox_as_the_reference_does() -> None:
    trail = assert_agrees(_REQUESTS, arguments=[18])
    assert len(trail.requests) == 11


def test_a_stack_without_room_for_the_callee_traps_before_anything_is_written() -> None:
    text = _CHAIN.replace("$buffer: 4 words", "$buffer: 5000 words")
    trail = run_native(Native(read_module(text)), arguments=[1])
    assert trail.outcomes == [Outcome.TRAPPED]
    assert not trail.memory[STACK + 100 :].any()


def test_isolated_functions_are_still_valid() -> None:
    module = read_module(_CHAIN)
    for name, function in module.functions.items():
        module.functions[name] = isolate(function, is_request)
    verify(module)
    assert "~1" in render(module)


def test_live_slots_are_those_that_are_read_later() -> None:
    live = live_slots(read_module(_CHAIN).functions["outer"])
    assert live["done"] == {"sum"}
    assert live["body"] == {"i", "n", "sum"}


def test_functions_that_call_each_other_are_recursive() -> None:
    text = _CHAIN.replace("call[plain] u16 %0", "call[inner] u16 %0")
    assert recursive_functions(read_module(text)) == {"inner"}


def test_functions_of_loops_are_those_with_one_and_what_they_call() -> None:
    text = _CHAIN.replace("entry &outer", "entry &outer\nfn &other() void {\nh:\n  return !0\n}")
    assert functions_in_loops(read_module(text)) == {"outer", "middle", "inner", "plain"}
