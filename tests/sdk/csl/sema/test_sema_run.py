"""Code for the PE computes what the language says."""

import pytest

from tests.sdk.csl.sema.programs import result, run

CASES = {
    "sum of a while loop": ("var i: i16 = 0; while (i < 5) : (i += 1) { out += i; }", 10),
    "break leaves the loop": (
        "var i: i16 = 0; while (true) : (i += 1) { if (i == 3) break; out += 10; }",
        30,
    ),
    "continue runs the step": (
        "var i: i16 = 0; while (i < 6) : (i += 1) { if (i % 2 == 0) continue; out += i; }",
        9,
    ),
    "for over a range": ("for (@range(i16, 4)) |i| { out += i; }", 6),
    "for over a range with a step": ("for (@range(i16, 1, 10, 4)) |i| { out += i; }", 15),
    "for downwards": ("for (@range(i16, 3, 0, -1)) |i| { out = out * 10 + i; }", 321),
    "an empty range": ("out = 7; for (@range(i16, 3, 3, 1)) |i| { out = i; }", 7),
    "a range to a run-time bound": (
        "var n: i16 = 4; for (@range(i16, n)) |i| { out += i; }",
        6,
    ),
    "a range with run-time bounds and step": (
        "var n: i16 = 9; var s: i16 = -3; for (@range(i16, n, 0, s)) |i| { out += i; }",
        18,
    ),
    "a range that ends at the type's bound": (
        "for (@range(i16, 32000, 32767, 500)) |i| { out += 1; }",
        2,
    ),
    "for over an array with index": (
        "for ([3]i16{ 5, 6, 7 }) |v, i| { out += v * @as(i16, i); }",
        20,
    ),
    "if as an expression": ("var c = true; out = if (c) 3 else 4;", 3),
    "else branch": ("var c = false; if (c) { out = 1; } else { out = 2; }", 2),
    "labelled block with a value": (
        "var y: i16 = 4; out = blk: { if (y > 3) { break :blk 1; } break :blk y; };",
        1,
    ),
    "labelled loop": (
        (
            "outer: for (@range(i16, 3)) |i| { for (@range(i16, 3)) |j| "
            "{ if (j == 2) continue :outer; if (i == 2) break :outer; out += 1; } }"
        ),
        4,
    ),
    "switch of values and ranges": (
        (
            "var x: i16 = 5; switch (x) { 1, 2 => { out = 1; }, 3...7 => { out = 2; }, "
            "else => { out = 3; } }"
        ),
        2,
    ),
    "switch as an expression": (
        "var x: u16 = 9; out = switch (x) { 0 => 10, 1 => 20, else => 30 };",
        30,
    ),
    "and looks at its right side only when needed": (
        "var z: i16 = 0; if (z != 0 and 6 / z == 1) { out = 1; } else { out = 2; }",
        2,
    ),
    "or of run-time values": ("var a = false; var b = true; if (a or b) { out = 5; }", 5),
    "not": ("var a = false; if (!a) { out = 6; }", 6),
    "arithmetic wraps around": ("var a: i16 = 32767; out = a + 1;", -32768),
    "division truncates": ("var a: i16 = -7; out = a / 2;", -3),
    "remainder has the dividend's sign": ("var a: i16 = -7; out = a % 2;", -1),
    "arithmetic shift of signed integers": ("var a: i16 = -8; out = a >> 1;", -4),
    "compound assignment": ("out = 12; out /= 5; out <<= 3; out |= 1; out ^= 3;", 18),
    "address of a local": ("var a: i16 = 1; const p = &a; p.* = 9; out = a;", 9),
    "array element through a pointer": (
        "var a = [3]i16{ 1, 2, 3 }; var p: [*]i16 = &a; p[1] = 8; out = a[1] + p[2];",
        11,
    ),
    "run-time index": (
        "var a = @zeros([4]i16); for (@range(i16, 4)) |i| { a[i] = i * i; } out = a[3];",
        9,
    ),
    "run-time index of a constant": (
        "const a = [4]i16{ 2, 3, 5, 7 }; var i: u16 = 2; out = a[i];",
        5,
    ),
    "arrays of two dims are row-major": (
        (
            "var a = @zeros([2,3]i16); var i: u16 = 1; a[i, 2] = 6; var f: *[2,3]i16 = &a; "
            "out = f.*[1, 2];"
        ),
        6,
    ),
    "arrays are copied": (
        "var a = [2]i16{ 1, 2 }; var b = a; b[0] = 5; out = a[0] * 10 + b[0];",
        15,
    ),
    "elements are read before any is written": (
        "var a = [2]i16{ 1, 2 }; a = [2]i16{ a[1], a[0] }; out = a[0] * 10 + a[1];",
        21,
    ),
    "an if in the middle of an expression": (
        "var c = true; var a: i16 = 5; out = a * 2 + (if (c) a else 0);",
        15,
    ),
    "inline loop": ("inline for ([3]i16{ 1, 2, 3 }) |v| { out += v; }", 6),
    "break of an inline loop on a run-time condition": (
        "var n: i16 = 2; inline for ([4]i16{ 1, 2, 3, 4 }) |v| { if (v > n) break; out += v; }",
        3,
    ),
    "continue of an inline loop": (
        "var n: i16 = 2; inline for ([4]i16{ 1, 2, 3, 4 }) |v| { if (v == n) continue; out += v; }",
        8,
    ),
    "comptime variable": (
        "comptime var k: i16 = 1; k += 4; comptime { k *= 2; } out = k;",
        10,
    ),
    "shift by a run-time count": ("var n: u16 = 3; var one: i16 = 1; out = one << n;", 8),
    "return in the middle": ("out = 1; if (out == 1) { return; } out = 2;", 1),
    "bool becomes a number": ("var b = true; out = @as(i16, b);", 1),
    "float becomes an integer": ("var f: f32 = -3.75; out = @as(i16, f);", -3),
}


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES)
def test_statements_leave_their_result(body: str, expected: int) -> None:
    assert result(body) == expected


def test_f16_arithmetic_rounds_once() -> None:
    assert result("var a: f16 = 2048.0; out = a + 1.0;", "f16") == 2048.0


def test_f32_multiplication() -> None:
    assert result("var a: f32 = 1.5; out = a * -2.0;", "f32") == -3.0


def test_a_literal_integer_is_a_float_where_one_is_wanted() -> None:
    assert result("var a: f32 = 3; out = 2 * a + 1;", "f32") == 7.0


def test_numbers_widen_where_nothing_is_lost() -> None:
    assert (
        result("var a: i16 = -3; var b: u8 = 200; var c: i32 = b; out = a; out += c;", "i32") == 197
    )


def test_a_16_bit_float_widens() -> None:
    assert result("var a: f16 = 0.5; out = a;", "f32") == 0.5


def test_bits_of_a_float() -> None:
    assert result("var a: f32 = 1.0; out = @bitcast(u32, a);", "u32") == 0x3F800000


def test_a_function_gets_its_arguments() -> None:
    globals_ = "fn f(a: i16, b: i16) i16 { return a - b; }"
    assert result("out = f(9, 4);", globals_=globals_) == 5


def test_a_function_returns_an_array() -> None:
    globals_ = "fn f(a: i16) [2]i16 { return [2]i16{ a, a + 1 }; }"
    assert result("out = f(3)[1];", globals_=globals_) == 4


def test_a_function_takes_an_array_by_value() -> None:
    globals_ = "fn f(a: [2]i16) i16 { return a[0] + a[1]; }"
    assert result("var a = [2]i16{ 4, 5 }; out = f(a);", globals_=globals_) == 9


def test_a_function_writes_through_a_pointer() -> None:
    globals_ = "fn f(p: *i16) void { p.* += 1; }"
    assert result("out = 4; f(&out);", globals_=globals_) == 5


def test_a_function_is_called_through_a_pointer() -> None:
    globals_ = """
      fn twice(a: i16) i16 { return 2 * a; }
      fn square(a: i16) i16 { return a * a; }
      var chosen: *const fn(i16) i16 = &twice;"""
    assert result("out = chosen(5); chosen = square; out += chosen(5);", globals_=globals_) == 35


def test_a_generic_function_has_an_instance_for_each_type() -> None:
    globals_ = "fn add(comptime T: type, a: T, b: T) T { return a + b; }"
    body = "var x: i32 = 70000; if (add(i32, x, 1) == 70001) { out = add(i16, 2, 3); }"
    assert result(body, globals_=globals_) == 5


def test_anytype_takes_the_arguments_type() -> None:
    globals_ = "fn next(x: anytype) @type_of(x) { return x + @as(@type_of(x), 1); }"
    assert result("var x: i16 = 6; out = next(x);", globals_=globals_) == 7


@pytest.mark.parametrize(
    ("signature", "body", "call"),
    [
        ("f(v: anytype) @type_of(v[0])", "return v[1];", "f(three)"),
        ("f(v: anytype, n: i16) @type_of(v[n])", "return v[n];", "f(three, k)"),
        ("f(p: anytype) @type_of(p[0])", "return p[1];", "f(@as([*]i16, &three))"),
        ("f(p: anytype) @type_of(p.*)", "return p.* + 8;", "f(&k)"),
        ("f(b: anytype) @type_of(b.y)", "return b.y;", "f(box)"),
        ("f(a: anytype, b: anytype) @type_of(a + b)", "return a + b + 7;", "f(k, k)"),
    ],
)
def test_a_result_has_the_type_of_an_expression_of_parameters(
    signature: str, body: str, call: str
) -> None:
    globals_ = f"""
      const pair = struct {{ x: i32, y: i16 }};
      var three = [3]i16{{ 3, 9, 4 }};
      var box = pair{{ .x = 1, .y = 9 }};
      var k: i16 = 1;
      fn {signature} {{ {body} }}"""
    assert result(f"out = {call};", globals_=globals_) == 9


def test_an_inline_function_hands_on_known_values() -> None:
    globals_ = "inline fn f(a: i32, b: i32) i32 { return a + b; }"
    body = "if (f(1200, 34) != 1234) { @comptime_assert(false); } out = 1;"
    assert result(body, globals_=globals_) == 1


def test_an_inline_function_with_two_returns() -> None:
    globals_ = "inline fn f(a: i16) i16 { if (a > 2) { return 10; } return a; }"
    assert result("var a: i16 = 1; out = f(a) + f(5);", globals_=globals_) == 11


def test_a_function_as_parameter_is_called_directly() -> None:
    globals_ = "fn g() i16 { return 8; } fn f(h: fn() i16) i16 { return h(); }"
    assert result("out = f(g);", globals_=globals_) == 8


def test_structs_lie_in_memory() -> None:
    globals_ = "const point = struct { x: i16, y: i32 }; var p = point{ .x = 1, .y = 70000 };"
    body = "p.y += 1; const q = &p; q.*.x = 5; if (p.y == 70001) { out = p.x; }"
    assert result(body, globals_=globals_) == 5


def test_a_struct_is_built_from_run_time_values() -> None:
    globals_ = """
      const point = struct { x: i16, y: i16 };
      fn swap(p: point) point { return point{ .x = p.y, .y = p.x }; }"""
    body = "var a: i16 = 3; const q = swap(point{ .x = a, .y = 4 }); out = q.x * 10 + q.y;"
    assert result(body, globals_=globals_) == 43


def test_fields_of_a_union_share_their_memory() -> None:
    globals_ = "const bits = union { f: f32, w: [2]u16 };"
    body = "var x: f32 = 1.0; var u = bits{ .f = x }; out = u.w[1];"
    assert result(body, "u16", globals_) == 0x3F80


def test_enumerations_are_compared_and_switched() -> None:
    globals_ = "const e = enum(u16) { a, b = 4, c }; var x = e.b;"
    body = "if (x == e.b) { out = 1; } out += switch (x) { e.a => 10, e.b => 20, e.c => 30 };"
    assert result(body, globals_=globals_) == 21


def test_global_arrays_are_initialized_at_compile_time() -> None:
    text = """
      fn squares() [4]u16 {
        var a = @zeros([4]u16);
        var i: u16 = 0;
        while (i < 4) : (i += 1) { a[i] = i * i; }
        return a;
      }
      var table = squares();
      fn main() void { table[0] = 7; }"""
    assert run(text)["table"] == [7, 1, 4, 9]


def test_a_pointer_in_memory_points_to_a_global() -> None:
    text = """
      var a = [2]f32{ 1.0, 2.0 };
      var p: [*]f32 = &a;
      fn main() void { p[1] = 5.0; }"""
    assert run(text)["a"] == [1.0, 5.0]


def test_a_local_array_is_filled_without_a_copy_in_memory() -> None:
    memory = run(
        "var out: [9]i16;\nfn main() void { var a = @constants([9]i16, 3); a[8] = 1; out = a; }"
    )
    assert (memory["out"], list(memory.image.state.variables)) == ([3] * 8 + [1], ["out"])


def test_variables_without_use_take_no_memory() -> None:
    text = "var big: [20000]u32;\nvar out: i16;\nfn main() void { out = 1; }"
    assert "big" not in run(text).image.state.variables
