"""Equal functions of several images are compiled once."""

import pytest

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.codegen.modules import ImageKind, module_text
from openwafer.sdk.codegen.sharing import ProgramText, program_text
from openwafer.sdk.ir.text import parse
from openwafer.sdk.program.mailbox import Outcome
from tests.sdk.codegen.oracle import Native, Trail

HEAD = 'module "m" stack 100 memory 24576\nentry &main\n'


def image(inner: int, outer: int = 1, *, names: tuple[str, str] = ("middle", "inner")) -> str:
    """A module whose `main` calls `middle`, which calls `inner`; each stores a number."""
    middle, last = names
    return f"""{HEAD}fn &main() void {{
head:
  call[{middle}] !0
  return !0
}}
fn &{middle}() void {{
head:
  store 40:ptr, {outer}:u16 !0
  call[{last}] !0
  return !0
}}
fn &{last}() void {{
head:
  store 42:ptr, {inner}:u16 !0
  return !0
}}
"""


def shared(*texts: str) -> ProgramText:
    modules = [
        module_text(parse(text), ImageKind((False,)), GENERATIONS[Arch.WSE2], has_f16=True)
        for text in texts
    ]
    return program_text(modules)


def count(text: ProgramText) -> int:
    """Functions that images bring along: main, its two callees, an entry and the way in."""
    lines = text.straight.splitlines()
    return sum(line.startswith("define") and "@f." in line for line in lines)


def test_equal_images_are_one() -> None:
    text = shared(image(5), image(5))
    assert text.ways[0] == text.ways[1]
    assert count(text) == 5


def test_names_make_no_difference() -> None:
    text = shared(image(5), image(5, names=("a", "b")))
    assert text.ways[0] == text.ways[1]


def test_who_calls_another_function_calls_it_by_a_link() -> None:
    text = shared(image(5), image(6))
    assert text.ways[0].run == text.ways[1].run
    assert text.ways[0].links != text.ways[1].links
    assert count(text) == 6


def test_what_is_called_by_different_functions_is_shared() -> None:
    text = shared(image(5), image(5, outer=2))
    assert text.ways[0].links != text.ways[1].links
    assert count(text) == 6


def test_a_function_that_calls_itself_is_shared() -> None:
    recursive = f"{HEAD}fn &main() void {{\nhead:\n  call[main] !0\n  return !0\n}}\n"
    text = shared(recursive, recursive, image(1))
    assert text.ways[0] == text.ways[1]
    assert count(text) == 6


def test_functions_of_one_image_that_call_different_ones_stay_apart() -> None:
    both = image(5).replace("call[middle]", "call[again] !0\n  call[middle]")
    other = image(6).partition("fn &middle")[2].replace("inner", "last")
    text = shared(f"{both}fn &again{other}")
    assert not text.ways[0].links
    assert count(text) == 7


@pytest.mark.parametrize("number", range(3))
def test_images_call_their_own_functions(number: int) -> None:
    modules = [parse(image(inner, outer)) for inner, outer in ((5, 1), (6, 1), (6, 2))]
    native, trail = Native(*modules), Trail()
    assert native.step(trail, 0, is_resume=False, image=number) is Outcome.FINISHED
    assert (trail.data[20], trail.data[21]) == ((1, 5), (1, 6), (2, 6))[number]
