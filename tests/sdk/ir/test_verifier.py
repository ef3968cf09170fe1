"""What the verifier refuses, each with the function and the place in it."""

import re

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.ir.text import parse
from openwafer.sdk.ir.verifier import verify

HEAD = """module "m" stack 64 memory 256
place "m.csl" 1 1 "f"
global @a 16 8
entry &f
fn &other($n: i16) i16 {
head:
  %0 = get[n] i16 !0
  return %0 !0
}
fn &f($k: i16) void {
  slot $m: 4 words
head:
"""
DSD = "dsd(1, 16, 4, 0, 1, 1, 0, 0)"


def wrong(*lines: str, end: str = "return") -> str:
    """What is said about a function of one block."""
    body = "".join(f"  {line} !0\n" for line in (*lines, end))
    with pytest.raises(
        OpenwaferError, match=r"error\[ir-invalid\]: &f: \w+, instruction"
    ) as caught:
        verify(parse(f"{HEAD}{body}}}\n"))
    first = str(caught.value).splitlines()[0]
    return re.sub(r".*instruction \d+ \(\w+\): ", "", first)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%0 = add i16 1:i16, 1:i32", "types differ: i16, i32"),
        ("%0 = add i16 1:i16, 70000:i16", "70000 does not fit i16"),
        ("%0 = eq i16 1:i16, 1:i16", "gives bool, not i16"),
        ("%0 = get[q] i16", "there is no slot $q"),
        ("%0 = get[k] u16", "$k is i16, not u16"),
        ("%0 = get[m] i16", "$m is in memory"),
        ("%0 = slot_address[k] ptr", "$k is a register"),
        ("%0 = load i16 @b", "there is no global @b"),
        ("%0 = load i16 3:i16", "i16 is given where P is asked for"),
        ("store @a", "takes PT, is given"),
        ("%0 = call[gone] i16 1:i16", "there is no function &gone"),
        ("%0 = call[other] i16 1:i32", "&other takes"),
        ("%0 = call[other] u16 1:i16", "&other returns i16, not u16"),
        ("%0 = math[cube] f32 0:f32", "there is no function of the numbers 'cube'"),
        ("%0 = vector[addd] bool @a, 1:i16", "there is no vector operation 'addd'"),
        (f"%0 = vector[mov16,soon] bool {DSD}, 1:i16", "there is no option ['soon']"),
        (f"%0 = vector[add16] bool {DSD}, 1:i16", "add16 with [] takes 3 operands, has 2"),
        (f"show[r1,w1] {DSD}", "has roles ('r1', 'w1') for 1 descriptors"),
        (f"show[x] {DSD}", "has roles ('x',) for 1 descriptors"),
        ("show[r1] 1:i16", "i16 is given where D* is asked for"),
    ],
)
def test_an_instruction_that_breaks_the_contract_is_refused(line: str, said: str) -> None:
    assert wrong(line).startswith(said)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("jump[away]", "there is no block away"),
        ("return 1:i16", "returns ("),
        ("%0 = get[k] i16", "a terminator stands last, and only there"),
    ],
)
def test_a_block_that_does_not_end_well_is_refused(end: str, said: str) -> None:
    assert wrong(end=end).startswith(said)


def test_a_value_is_defined_once() -> None:
    line = "%0 = get[k] i16"
    assert wrong(line, line) == "%0 is defined twice"


def test_a_value_is_used_in_its_own_block() -> None:
    elsewhere = "jump[tail] !0\ntail:\n  store @a, %0 !0\n  return"
    said = "%0 is not a i16 defined before in this block"
    assert wrong("%0 = get[k] i16", end=elsewhere) == said
