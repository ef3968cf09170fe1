"""Where code keeps to the order of cycles, and where it need not."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from openwafer.sdk.arch.generation import WSE2
from openwafer.sdk.ir.cost import timed
from openwafer.sdk.ir.function import Instruction, Module
from openwafer.sdk.ir.order import NO_REACH, Reach, ordered, shared_variables
from openwafer.sdk.ir.text import parse
from openwafer.sdk.ir.verifier import verify

SENT = "dsd(3, 5, 4, 0, 2, 2, 0, 0), dsd(1, 20, 4, 0, 1, 1, 0, 0)"
SENDS = f"vector[mov16, fabric, async] {SENT} !0"
OUT = "dsd(3, 5, 4, 0, 2, 2, 0, 0)"
HEAD = """module "order" stack 100 memory 24576
global @before 16 4
global @sent 20 4
global @other 24 4
constant @fixed 28 2 = 7 8
"""


def module_of(*lines: str, more: str = "") -> Module:
    body = "\n".join(f"  {line}" for line in lines)
    slots = "  slot $p: ptr\n  slot $d: dsd\n  slot $m: 4 words"
    text = f"entry &main\nfn &main() void {{\n{slots}\nhead:\n{body}\n  return !0\n}}\n"
    module = parse(HEAD + more + text)
    verify(module)
    return module


def instructions(module: Module, reach: Reach = NO_REACH) -> Iterator[Instruction]:
    for function in ordered(timed(module, WSE2), reach).functions.values():
        for block in function.blocks:
            yield from block.instructions


def waits(*lines: str) -> list[str]:
    """What comes behind each ``sync`` of a program that sends an array and then does this."""
    found = list(instructions(module_of(SENDS, *lines)))
    return [after.op for one, after in pairwise(found) if one.op == "sync"]


def test_code_without_asynchronous_operations_is_left_alone() -> None:
    module = timed(module_of("%0 = load u16 @sent !0", f"vector[mov16, fabric] {SENT} !0"), WSE2)
    assert ordered(module) is module


def test_code_waits_before_it_touches_what_is_sent() -> None:
    assert waits("%0 = load u16 @sent+2 !0") == ["load"]
    assert waits("store @sent+2, 5:u16 !0") == ["store"]
    assert waits("copy @other, @sent, 2:u16 !0") == ["copy"]


def test_other_variables_do_not_wait() -> None:
    assert waits("store @before, 5:u16 !0", "store @other, 5:u16 !0") == []
    assert waits("%0 = load u16 @fixed !0", "store @other, %0 !0") == []


def test_an_element_of_a_variable_is_known_by_the_variable() -> None:
    assert waits("%0 = ptr_add ptr @other, 1:u16 !0", "store %0, 5:u16 !0") == []
    assert waits("%0 = ptr_add ptr @sent, 1:u16 !0", "store %0, 5:u16 !0") == ["store"]


def test_a_pointer_that_a_variable_holds_may_lead_anywhere() -> None:
    assert waits("%0 = get[p] ptr !0", "store %0, 5:u16 !0") == ["store"]


def test_memory_of_a_function_waits_only_where_its_address_is_given_away() -> None:
    lines = "%0 = slot_address[m] ptr !0", "store %0, 5:u16 !0"
    assert waits(*lines) == []
    assert waits(*lines, "set[p] %0 !0") == ["store"]


def test_one_wait_is_enough_for_a_run_of_instructions() -> None:
    lines = ["store @sent, 5:u16 !0", "store @sent+2, 5:u16 !0"]
    assert waits(*lines) == ["store"]
    assert waits(lines[0], "%0 = timestamp[0] u16 !0", "store @sent+4, %0 !0") == ["store"] * 2


def test_blocking_and_unblocking_wait() -> None:
    assert waits("block 9:u16 !0") == ["block"]


BASES = {
    "%2 = word_of u16 @other !0": {"other"},
    "%1 = dsd_get[1] u16 %0 !0\n  %2 = add u16 %1, 4:u16 !0": set[str](),
    "%1 = get[p] ptr !0\n  %2 = word_of u16 %1 !0": {"before", "other"},
}


@pytest.mark.parametrize("base", BASES)
def test_a_base_that_is_set_shares_what_it_comes_from(base: str) -> None:
    module = module_of(SENDS, "%0 = get[d] dsd !0", base, "%3 = dsd_set[1] dsd %0, %2 !0")
    assert shared_variables(module) == {"sent"} | BASES[base]


def test_a_descriptor_shares_its_variable_unless_code_alone_uses_it() -> None:
    dsd = "dsd(1, 24, 4, 0, 1, 1, 0, 0)"
    assert shared_variables(module_of(SENDS, f"vector[mov16] {dsd}, 0:u16 !0")) == {"sent"}
    assert shared_variables(module_of(SENDS, f"set[d] {dsd} !0")) == {"sent", "other"}


def test_a_descriptor_in_memory_shares_what_it_leads_to() -> None:
    more = "global @stored 40 8 = 1 24 4 0 1 1 0 0\n"
    assert shared_variables(module_of(SENDS, more=more)) == {"sent", "other"}


def test_fifos_and_registers_of_an_image_share_their_memory() -> None:
    module = module_of("store @other, 5:u16 !0")
    assert all(one.op != "sync" for one in instructions(module))
    assert any(one.op == "sync" for one in instructions(module, Reach((25,), True)))
