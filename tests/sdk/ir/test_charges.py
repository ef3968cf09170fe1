"""Every cycle of scalar code belongs to an instruction: it is issued then, or waited for."""

from collections import Counter
from random import Random

import pytest

from openwafer.sdk.arch.generation import WSE2
from openwafer.sdk.ir.cost import charged, timed
from tests.sdk.codegen.generated import random_module
from tests.sdk.codegen.oracle import read_module
from tests.tables import some

_ADD = """
  %0 = load i16 @x !1
  %1 = load i16 @x+2 !2
  %2 = add i16 %0, %1 !3
  store @x+4, %2 !4
"""
_STEPPED_CHOICE = """
  jump[head] !1
head: {mark}
  %0 = get[n] i16 !1
  %1 = ne bool %0, 0:i16 !1
  branch[first, second] %1 !1
first:
  %2 = get[n] i16 !1
  %3 = mul i16 %2, 5:i16 !5
  set[n] %3 !5
  jump[end] !1
second:
  %4 = get[n] i16 !1
  %5 = add i16 %4, 7:i16 !7
  set[n] %5 !7
  jump[end] !1
end:
  %6 = get[n] i16 !1
  store @x, %6 !1
"""


def shares_of(lines: str, more: str = "") -> dict[int, tuple[int, int]]:
    """By place, the cycles that its instructions took and those that they were waited for."""
    text = f"""
global @x 16 8
global @d 32 8
entry &main
fn &main($n: i16) void {{
start:
{lines}
  return !0
}}
{more}
"""
    taken, waited = Counter[int](), Counter[int]()
    for _, charges in charged(read_module(text), WSE2):
        for share in (share for charge in charges for share in charge.shares):
            taken[share.place] += share.taken
            waited[share.place] += share.waited
    return {place: (taken[place], waited[place]) for place in sorted(taken | waited)}


def test_a_wait_belongs_to_the_load_that_comes_last() -> None:
    assert shares_of(_ADD) == {1: (1, 0), 2: (1, 3), 3: (1, 0), 4: (1, 0)}


def test_what_fills_a_wait_takes_from_what_was_waited_for() -> None:
    other = "  %3 = get[n] i16 !5\n  %4 = xor i16 %3, 5:i16 !5\n  store @d, %4 !6\n"
    assert shares_of(_ADD + other) == {**shares_of(_ADD), 2: (1, 1), 5: (1, 0), 6: (1, 0)}


@pytest.mark.parametrize("mark", ["", "stepped"])
def test_ways_are_charged_also_behind_a_block_that_the_machine_steps(mark: str) -> None:
    shares = shares_of(_STEPPED_CHOICE.format(mark=mark))
    assert (shares[5], shares[7]) == ((2, 0), (1, 0))


def test_each_float_operation_of_a_chain_is_waited_for() -> None:
    chain = "  %0 = load f32 @x !1\n  %1 = mul f32 %0, %0 !2\n  %2 = mul f32 %1, %1 !3\n"
    assert shares_of(chain + "  store @x, %2 !4\n") == {1: (1, 3), 2: (1, 1), 3: (1, 1), 4: (1, 0)}


def test_a_result_that_a_call_takes_is_waited_for() -> None:
    callee = "fn &f($a: i16) void {\nhead:\n  return !9\n}\n"
    call = "  %0 = load i16 @x !1\n  call[f] %0 !2\n  call[f] 1:i16 !3\n"
    assert shares_of(call, callee) == {1: (1, 3)}
    recursive = callee.replace("return !9", "call[f] 0:i16 !8\n  return !9")
    cycles = WSE2.timing.call_cycles + 1
    calls = {2: (cycles, 0), 3: (cycles, 0), 8: (cycles, 0)}
    assert shares_of(call, recursive) == {1: (1, 3), **calls}


def test_a_store_belongs_to_the_line_that_wrote_last() -> None:
    assert shares_of("  store @x, 1:i16 !1\n  store @x, 2:i16 !2\n") == {2: (1, 0)}


def test_words_of_a_descriptor_belong_to_where_they_were_changed() -> None:
    change = '  %0 = load dsd @d !1\n  %1 = dsd_set["1"] dsd %0, 40:u16 !2\n  store @d, %1 !3\n'
    use = "  vector[mov16] %1, %1 !4\n"
    assert shares_of(change + use) == {3: (1, 0)}


def test_a_load_of_a_register_has_its_cycle_once() -> None:
    load = "  load_dsr[0,1] dsd(1, 40, 8, 0, 1, 1, 0, 0) !1\n"
    assert shares_of(load) == {1: (1, 0)}
    assert shares_of(load + "  vector[mov16,fabric] dsr(1), 5:u16 !2\n") == {1: (1, 3)}


_CHOICE = """
  branch[one, other] %2 !3
one:
  set[n] 7:i16 !4
  jump[both] !4
other:
  jump[both] !5
both:
  %4 = get[n] i16 !6
  store @x+2, %4 !6
"""


def test_a_choice_without_a_branch_belongs_to_the_condition() -> None:
    compare = "  %0 = load i16 @x !1\n  %1 = get[n] i16 !1\n  %2 = lt bool %0, %1 !2\n"
    assert shares_of(compare + _CHOICE) == {1: (1, 3), 2: (1, 0), 3: (1, 0), 6: (1, 0)}


def test_both_ways_of_a_branch_belong_to_it() -> None:
    compare = "  %0 = load i16 @x !1\n  %1 = get[n] i16 !1\n  %2 = lt bool %0, %1 !2\n"
    stores = _CHOICE.replace("set[n] 7:i16", "store @x+4, 7:i16")
    not_taken, taken = WSE2.timing.branch_cycles
    assert shares_of(compare + stores)[3] == (not_taken + taken, 0)


@pytest.mark.parametrize("seed", some(range(40), *range(12)))
def test_shares_add_up_to_the_cycles_of_the_code(seed: int) -> None:
    module = random_module(Random(seed))
    functions = timed(module, WSE2).functions.values()
    cycles = [one.cycles for function in functions for one in function.instructions]
    for own, (_, charges) in zip(cycles, charged(module, WSE2), strict=True):
        parts = [sum(share.taken + share.waited for share in c.shares) for c in charges]
        assert parts == [charge.cycles for charge in charges]
        assert tuple(parts) == own or not any((*parts, *own))
