"""What the compiler computes: literals, operators, builtins, functions at compile time."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.image import run_layout
from openwafer.sdk.csl.sema.layout_state import LayoutState
from tests.sdk.csl.sema.programs import FILE, analyze, imports_of, known, messages, value

EXPRESSIONS = {
    "1000 * 1000 * 1000 * 1000": 10**12,
    "-7 / 2": -3,
    "-7 % 2": -1,
    "1 << 40": 1 << 40,
    "0xf0 | 0x0f": 0xFF,
    "6 ^ 3": 5,
    "~@as(u8, 0b10101111)": 0b01010000,
    "@as(u16, 65535) + 1": 0,
    "@as(i16, 32767) + 1": -32768,
    "-@as(i16, -32768)": -32768,
    "@as(i16, 11.2)": 11,
    "@as(i16, -10.8)": -10,
    "@as(i16, 1e9)": 32767,
    "@as(bool, -0.0)": False,
    "@as(bool, -5)": True,
    "@as(f16, 10)": 10.0,
    "@as(f16, 2049.0)": 2048.0,
    "@as(f16, 1.0) / 3.0": 0.333251953125,
    "1.0 / 4.0": 0.25,
    "@bitcast(u16, @as(f16, 1.0))": 0x3C00,
    "@bitcast(u16, @as(bf16, 6.0))": 0b0100000011000000,
    "@bitcast(i16, @as(u16, 0xffff))": -1,
    "@bitcast(f32, 0x3f800000)": 1.0,
    "'a'": 97,
    "'\\n'": 10,
    "true and !false": True,
    "false and invalid": False,
    "true or invalid": True,
    "1 < 2": True,
    '"abc" == "abc"': True,
    "@concat_structs([2]comptime_struct{ .{ .a = 1 }, .{ .a = 2 } }[1], .{ .b = 3 }).a": 2,
    '"abc\\x00xyz" != "abc"': True,
    '@strlen("abc\\x00xyz")': 7,
    '@strcat("ab", "c", "d")': b"abcd",
    '@get_array("abc")': (97, 98, 99),
    "@get_string_from_byte(65)": b"A",
    "@zeros([2,2]i16)": (0, 0, 0, 0),
    "@constants([2]f32, 1.5)": (1.5, 1.5),
    "@dimensions([3, 5, 7]f16)": (3, 5, 7),
    "@rank([3, 5, 7]f16)": 3,
    "@element_count([3, 5, 7]f16)": 105,
    "@is_same_type(@element_type([3]f16), f16)": True,
    "@is_same_type(@type_of(@as(u32, 1)), u32)": True,
    "i16 == i16": True,
    "i16 == u16": False,
    '@is_arch("wse2")': True,
    "@is_comptime()": True,
    "@is_same_type(@fp16(), f16)": True,
    '@has_field(.{ .a = 1 }, "a")': True,
    '@has_field(.{ .a = 1 }, "b")': False,
    '@field(.{ .a = 8 }, "a")': 8,
    "@concat_structs(.{ .a = 1 }, .{ .b = 2 })": (1, 2),
    "@concat_structs(.{ 1 }, .{ 2, 3 })": (1, 2, 3),
    ".{ 4, 5 }[1]": 5,
    "[2]i16{ 4, 5 }[1]": 5,
    "[2,2]i16{ 1, 2, 3, 4 }[1,0]": 3,
    "@range_stop(@range(i16, 9))": 9,
    "@range_step(@range(i16, 1, 9, 2))": 2,
    "if (1 < 2) 3 else unknown": 3,
    "switch (@as(u16, 2)) { 1 => unknown, else => 4 }": 4,
    "blk: { var a = 1; while (a < 100) : (a *= 2) {} break :blk a; }": 128,
    "NORTH == NORTH": True,
    "NORTH == SOUTH": False,
}


@pytest.mark.parametrize(("text", "expected"), EXPRESSIONS.items(), ids=EXPRESSIONS)
def test_an_expression_has_its_value(text: str, expected: object) -> None:
    assert value(text) == expected


def test_float_division_by_zero_of_a_width_gives_infinity() -> None:
    assert value("@as(f32, 1.0) / 0.0") == float("inf")


def test_functions_run_at_compile_time() -> None:
    text = """
      fn fib(n: u16) u32 { if (n < 2) { return @as(u32, n); } return fib(n - 1) + fib(n - 2); }
      const it = fib(12);"""
    assert known(text).value == 144


def test_loops_over_arrays_run_at_compile_time() -> None:
    text = """
      const it = blk: {
        var sum: u16 = 0;
        for ([3]u16{ 1, 2, 3 }) |v, i| { sum += v * i; }
        break :blk sum;
      };"""
    assert known(text).value == 8


def test_pointers_reach_variables_at_compile_time() -> None:
    text = """
      fn set(p: [*]i16) void { p[1] = 9; }
      fn make() [2]i16 { var a = @zeros([2]i16); set(&a); return a; }
      const it = make();"""
    assert known(text).value == (0, 9)


def test_fields_are_assigned_at_compile_time() -> None:
    text = """
      const point = struct { x: i32, y: i32 };
      fn make() point { var p = point{ .x = 1, .y = 2 }; p.y = 5; return p; }
      const it = make();"""
    assert known(text).value == (1, 5)


def test_a_comptime_struct_takes_structs_of_any_type() -> None:
    text = """
      fn make() comptime_int {
        var any: comptime_struct = .{ .a = 1 };
        any = .{ .name = "x", .b = 7 };
        return any.b;
      }
      const it = make();"""
    assert known(text).value == 7


def test_a_field_is_assigned_by_its_name_as_a_string() -> None:
    text = """
      fn make() comptime_int { var s = .{ .a = 10 }; @field(s, "a") = 20; return s.a; }
      const it = make();"""
    assert known(text).value == 20


def test_a_struct_type_comes_out_of_a_function() -> None:
    text = """
      fn pair(comptime A: type, comptime B: type) type { return struct { first: A, second: B }; }
      const made = pair(i32, comptime_string){ .first = 42, .second = "text" };
      const it = made.first;"""
    assert known(text).value == 42


def test_a_struct_type_is_the_same_for_the_same_arguments() -> None:
    text = """
      fn pair(comptime T: type) type { return struct { first: T, second: T }; }
      const it = @is_same_type(pair(i32), pair(i32)) and !@is_same_type(pair(i32), pair(i16));"""
    assert known(text).value is True


def test_equal_structs_of_two_places_differ() -> None:
    text = """
      const a = struct { x: i16 };
      const b = struct { x: i16 };
      const it = @is_same_type(a, b);"""
    assert known(text).value is False


def test_elements_of_an_enum_are_numbered_around_given_values() -> None:
    text = "const e = enum(u16) { red, white = 1, blue };\nconst it = @as(i16, e.blue);"
    assert known(text).value == 2


def test_a_number_becomes_an_element() -> None:
    text = "const e = enum(u16) { red, white };\nconst it = @as(e, 1) == e.white;"
    assert known(text).value is True


def test_globals_are_used_before_their_declaration() -> None:
    assert known("const it = later + 1;\nconst later = 4;").value == 5


def test_the_16_bit_float_is_an_option() -> None:
    options = CompileOptions(fp16_format="bf16")
    assert known("const it = @is_same_type(@fp16(), bf16);", options=options).value is True


def test_what_is_printed_at_compile_time() -> None:
    text = 'comptime { @comptime_print("x", .{ .a = 1, .d = NORTH }, [2]i16{ 1, 2 }); }'
    assert analyze(text).printed == ("x, {a = 1, d = NORTH}, {1, 2}",)


def test_what_the_layout_prints() -> None:
    layout = LayoutState()
    text = 'layout { @comptime_print("hello", 3); }'
    run_layout(FILE, {}, CompileOptions(), imports_of(text), layout)
    assert layout.printed == ["hello, 3"]


def test_a_branch_not_taken_is_not_looked_at() -> None:
    assert messages("fn main() void { if (false) { nothing(); } }\n") == []


def test_a_function_that_nobody_uses_is_not_looked_at() -> None:
    assert messages("fn main() void { nothing(); }") == []


def test_a_comptime_print_in_a_run_time_loop_prints_once() -> None:
    text = """
      fn main() void { for ([2]i16{ 1, 2 }) |v| { @comptime_print("once"); } }
      comptime { @export_symbol(main); }"""
    assert analyze(text).printed == ("once",)


TWICE = "fn f(n: i16) i16 { return if (n == 0) 0 else f(n - 1) + f(n - 1); }"


@pytest.mark.parametrize(
    "program",
    ["comptime { while (true) {} }", TWICE + " comptime { @comptime_assert(f(100) == 0); }"],
)
def test_endless_work_at_compile_time_ends_at_a_limit(program: str) -> None:
    expected = "exceeded the maximum of 500 calls and iterations at compile time"
    assert messages(program, CompileOptions(comptime_step_limit=500)) == [expected]


def test_a_layouts_loop_that_counts_nothing_ends_at_the_limit() -> None:
    text = "layout { var y = 0; while (y < 3) : (y < 1) { } }"
    options = CompileOptions(comptime_step_limit=500)
    with pytest.raises(OpenwaferError, match="maximum of 500 calls and iterations"):
        run_layout(FILE, {}, options, imports_of(text), LayoutState())
