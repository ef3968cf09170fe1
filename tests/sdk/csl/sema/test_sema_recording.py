"""Images share what was found out about bodies, and come out as if each were analysed alone."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import types
from openwafer.sdk.csl.image_records import finished_image
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.debug_tables import DebugTables
from openwafer.sdk.csl.sema.image import ImageResult, analyze_image
from openwafer.sdk.csl.sema.layout_state import Rectangle, Surroundings
from openwafer.sdk.csl.sema.recording import Memo
from openwafer.sdk.csl.values import Comptime
from openwafer.sdk.program.debug_info import ImageNames
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.program import HostName
from tests.sdk.csl.sema.programs import FILE, imports_of, messages
from tests.sdk.csl.sema.test_sema_fuzz import SOURCES

IDS = (3, 1, 4, 1, 5, 3, 3)
RECTANGLE = Rectangle((len(IDS), 1), (20, 20), (4, 1))

NAMES = {"main": HostName(0, "main", "void", inputs=())}

PROGRAMS = {
    "a number": "export var x: i16; task main() void { x = id; }",
    "a number that decides": "export var x: i16; task main() void { if (id > 3) { x = id; } }",
    "another address": """
      var before = @zeros([id]i16); export var x: i16;
      fn touch() void { before[0] = 1; }
      task main() void { touch(); x = 2; }""",
    "a constant in memory": """
      const table = [3]i16 { 5, id, 7 }; var before = @zeros([id]i16); export var x: i16;
      fn pick(at: i16) i16 { return table[at]; }
      task main() void { x = pick(x); before[0] = 1; const own = [6]i16 { 1, 2, 3, 4, 5, 6 };
        x = own[x]; }""",
    "instances": """
      export var x: i16;
      fn add(comptime n: i16, m: i16) i16 { return if (n == 3) m else m + n; }
      task main() void { x = add(id, x) + add(3, x) + add(id + 1, x); }""",
    "calls at compile time": """
      fn ordered(first: i16) [3]i16 {
        var found = @zeros([3]i16); var i: u16 = 0;
        while (i < 3) : (i += 1) { found[i] = first - @as(i16, i) + bonus; }
        return found; }
      const bonus: i16 = if (id == 1) 100 else 0;
      const some = ordered(2); const more = ordered(id); export var x = ordered(id + 1);
      task main() void { x[0] = some[1] + more[2] + comptime ordered(id)[0]; }""",
    "floats": """
      fn half(n: f32) f32 { return n / 2.0; }
      const zero: f32 = if (id == 3) 0.0 else -0.0; export var x = half(zero);
      task main() void { x = half(zero) + x; }""",
    "pointers": """
      const low = [2]i16 { 1, id }; const high = [2]i16 { 8, 9 }; export var x: i16;
      var here: i16; var there: i16;
      fn first(from: *const [2]i16) i16 { return (from.*)[1]; }
      fn set(comptime to: *i16) void { to.* = 4; }
      task main() void { x = first(if (id > 3) &high else &low);
        set(if (id == 1) &here else &there); }""",
    "ids of tasks": """
      export var x: i16;
      task other() void { x += 1; }
      task main() void { @activate(other_id); if (id == 4) { @block(other_id); } }
      const other_id = @get_local_task_id(8 + @as(u16, id));
      comptime { @bind_local_task(other, other_id); }""",
    "descriptors": """
      var before = @zeros([id]u16); export var x = @zeros([9]f16);
      const c: color = @get_color(@as(u16, id));
      task main() void {
        const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{9} -> x[i] });
        const in = @get_dsd(fabin_dsd, .{ .extent = 9, .fabric_color = c,
                                          .input_queue = @get_input_queue(1) });
        @fmovh(all, in); before[0] = 1; }""",
}
ENDING = "comptime { @bind_local_task(main, @get_local_task_id(20)); }"


_WHOLE = [source for source in SOURCES if source.endswith("@export_symbol(main); }")]
_NUMBER = re.compile(r"(?<![\w.@\"])\d+(?![\w.\"])")
"""An integer as it is written; what stands in words and strings stays."""


def results(body: str, *, is_shared: bool) -> Iterator[ImageResult]:
    """The images of PEs with different ids."""
    imports = imports_of(f"param id: i16; {body} {ENDING}")
    options, memo = CompileOptions(arch=Arch.WSE2), Memo()
    tables = DebugTables()
    for number in IDS:
        surroundings = Surroundings(RECTANGLE, {}, tables, memo if is_shared else Memo())
        params = {"id": Comptime(types.I16, number)}
        yield analyze_image(FILE, params, options, imports, surroundings)


def images(body: str, *, is_shared: bool) -> list[Image]:
    """The same as records."""
    found = results(body, is_shared=is_shared)
    return [finished_image("", one, Arch.WSE2) for one in found]


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_images_come_out_as_if_each_were_analysed_alone(body: str) -> None:
    assert images(body, is_shared=True) == images(body, is_shared=False)


def test_a_body_that_gets_the_same_answers_is_analysed_once() -> None:
    body = "export var x: i16; fn two() i16 { return 2; } task main() void { x = two(); }"
    functions = [one.module.functions["two"] for one in results(body, is_shared=True)]
    assert len({id(one) for one in functions}) == 1


def test_bodies_are_told_apart_by_what_they_ask_for() -> None:
    body = "export var x: i16; task main() void { x = id; }"
    functions = [one.module.functions["main"] for one in results(body, is_shared=True)]
    assert [functions.index(one) for one in functions] == [0, 1, 2, 1, 4, 0, 0]


def test_every_image_prints_what_its_body_prints() -> None:
    body = """
      fn shown(n: i16) i16 { @comptime_print(n); return n; }
      export var x: i16; task main() void { x = comptime shown(7); }"""
    assert [one.printed for one in results(body, is_shared=True)] == [("7",)] * len(IDS)


def test_steps_at_compile_time_count_where_a_result_is_known() -> None:
    text = """
      fn slow(n: i16) i16 { var i: i16 = 0; while (i < n) : (i += 1) {} return i; }
      export var x: i16 = slow(40); export var y: i16 = slow(40);"""
    options = CompileOptions(comptime_step_limit=60)
    assert messages(text, options) == [
        "exceeded the maximum of 60 calls and iterations at compile time"
    ]


def outcomes(text: str, *, is_shared: bool) -> list[tuple[Image, ImageNames] | str]:
    """Images of PEs with different ids and their names, or what is wrong with them."""
    imports, memo = imports_of(f"param id: comptime_int;\n{text}"), Memo()
    tables = DebugTables()
    found: list[tuple[Image, ImageNames] | str] = []
    for number in (0, 1, 0, 2, 1):
        surroundings = Surroundings(RECTANGLE, NAMES, tables, memo if is_shared else Memo())
        params = {"id": Comptime(types.COMPTIME_INT, number)}
        try:
            one = analyze_image(FILE, params, CompileOptions(), imports, surroundings)
            found.append((finished_image("", one, Arch.WSE3), one.names))
        except OpenwaferError as error:
            found.append(str(error))
    return found


@given(st.sampled_from(_WHOLE), st.integers(0, 30), st.integers(0, 30))
def test_programs_with_some_number_that_differs_come_out_as_if_alone(
    source: str, first: int, second: int
) -> None:
    spans = [found.span() for found in _NUMBER.finditer(source)]
    for number in sorted({first, second}, reverse=True):
        if number < len(spans):
            start, end = spans[number]
            source = f"{source[:start]}({source[start:end]} + id){source[end:]}"
    assert outcomes(source, is_shared=True) == outcomes(source, is_shared=False)
