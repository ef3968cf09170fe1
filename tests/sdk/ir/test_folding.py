"""Calls of constants are computed when the program is compiled; others are left alone."""

import pytest

from openwafer.sdk.ir.folding import folded
from openwafer.sdk.ir.text import parse, render
from openwafer.sdk.ir.verifier import verify

HEAD = (
    'module "m" stack 64 memory 256\nplace "m.csl" 1 1 "f"\n'
    "constant @table 16 4 = 10 20 30 40\nglobal @state 20 1 = 5\nglobal @out 22 2\nentry &main\n"
)
SUM_TO = """
fn &sum_to($n: i16) i16 {
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
  %6 = sub i16 %5, %4 !0
  set[sum] %6 !0
  jump[head] !0
end:
  %7 = get[sum] i16 !0
  return %7 !0
}
"""
LOAD = """
fn &load($p: ptr) i16 {
b:
  %0 = get[p] ptr !0
  %1 = load i16 %0 !0
  return %1 !0
}
"""
FOREVER = """
fn &forever($n: i16) i16 {
b: loop_end
  jump[b] !0
}
"""
FAILS = """
fn &fails($n: i16) i16 {
b:
  assert 0:bool !0
  return 1:i16 !0
}
"""


def main(body: str, functions: str) -> str:
    """Text of `main` after folding."""
    module = parse(f"{HEAD}{functions}\nfn &main() void {{\nb:\n{body}  return !0\n}}\n")
    verify(module)
    after = folded(module)
    verify(after)
    text = render(after)
    return text[text.index("fn &main") :]


def test_a_call_of_constants_becomes_what_it_returns() -> None:
    text = main("  %0 = call[sum_to] i16 4:i16 !0\n  store @out, %0 !0\n", SUM_TO)
    assert "store @out, -10:i16" in text
    assert "call" not in text


def test_what_follows_from_a_folded_call_is_the_argument_of_the_next_one() -> None:
    calls = (
        "  %0 = call[sum_to] i16 4:i16 !0\n  %1 = neg i16 %0 !0\n"
        "  %2 = call[sum_to] i16 %1 !0\n  store @out, %2 !0\n"
    )
    assert "store @out, -55:i16" in main(calls, SUM_TO)


def test_a_function_may_read_constants_of_the_image() -> None:
    text = main("  %0 = call[load] i16 @table+4 !0\n  store @out, %0 !0\n", LOAD)
    assert "store @out, 30:i16" in text


@pytest.mark.parametrize(
    ("call", "functions"),
    [
        pytest.param("call[load] i16 @state", LOAD, id="reads a variable"),
        pytest.param("call[forever] i16 4:i16", FOREVER, id="never ends"),
        pytest.param("call[sum_to] i16 20000:i16", SUM_TO, id="takes long"),
        pytest.param("call[fails] i16 4:i16", FAILS, id="stops the PE"),
    ],
)
def test_a_call_that_needs_the_pe_stays(call: str, functions: str) -> None:
    text = main(f"  %0 = {call} !0\n  store @out, %0 !0\n", functions)
    assert call in text


def test_a_call_with_an_effect_stays() -> None:
    functions = "fn &f($n: i16) i16 {\nb:\n  store @out, 1:i16 !0\n  return 2:i16 !0\n}\n"
    text = main("  %0 = call[f] i16 4:i16 !0\n  store @state, %0 !0\n", functions)
    assert "call[f] i16 4:i16" in text
