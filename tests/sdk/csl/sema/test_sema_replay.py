"""Long loops at compile time: what they give, and what they say, is that of each iteration."""

import math
import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.image import new_sema, run_layout
from openwafer.sdk.csl.sema.layout_state import LayoutState
from openwafer.sdk.csl.sema.modules import start_module
from tests.sdk.csl.sema.programs import FILE, analyze, imports_of, known, messages

N = 300


def _primes_below(n: int) -> int:
    return sum(all(m % d for d in range(2, math.isqrt(m) + 1)) for m in range(2, n))


def _collatz_steps(n: int) -> int:
    steps = 0
    for start in range(1, n):
        m = start
        while m != 1:
            m, steps = 3 * m + 1 if m % 2 else m // 2, steps + 1
    return steps


def _harmonic(n: int) -> float:
    total = np.float32(0)
    for i in range(1, n + 1):
        total += np.float32(1) / np.float32(i)
    return float(total)


def _hash(n: int) -> int:
    h = 1
    for i in range(n):
        h = (h * 2654435769 + i) & 0xFFFFFFFF
    return h


def _quotients(n: int) -> int:
    x = -1
    for i in range(n):
        x = ((-math.trunc(x / 3) - i % 5 << 2) + 0x8000 & 0xFFFF) - 0x8000
    return x


def _fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n - 2):
        a, b = b, (a + b) % 1000
    return b


def _pair(n: int) -> int:
    x, y = 0, 1
    for i in range(n):
        x, y = y, (x + y + i) % 997
    return x


RESULTS: dict[str, int | float] = {
    """i32 {
    var s: i32 = 0;
    for (@range(i32, N)) |i| { s += i - 7; }
    return s;""": sum(range(N)) - 7 * N,
    """comptime_int {
    var p = 1;
    for (@range(comptime_int, 1, 50, 1)) |i| { p *= i; }
    return p;""": math.factorial(49),
    """u32 {
    var h: u32 = 1;
    for (@range(u32, N)) |i| { h = h * 2654435769 + i; }
    return h;""": _hash(N),
    """i16 {
    var x: i16 = -1;
    for (@range(i16, N)) |i| { x = -(x / 3) - i % 5 << 2; }
    return x;""": _quotients(N),
    """f32 {
    var t: f32 = 0.0;
    for (@range(u32, 1, N + 1, 1)) |i| { t += 1.0 / @as(f32, i); }
    return t;""": _harmonic(N),
    """u16 {
    var c: u16 = 0;
    for (@range(u16, 2, N, 1)) |n| { if (is_prime(n)) { c += 1; } }
    return c;""": _primes_below(N),
    """u32 {
    var c: u32 = 0;
    for (@range(u32, 1, N, 1)) |start| {
      var m = start;
      while (m != 1) { if (m % 2 == 0) { m /= 2; } else { m = 3 * m + 1; } c += 1; }
    }
    return c;""": _collatz_steps(N),
    """u32 {
    var c: u32 = 0;
    outer: for (@range(u32, N)) |y| {
      for (@range(u32, N)) |x| {
        if (x > y) { continue :outer; }
        if (y == 200) { break :outer; }
        c += x ^ y;
      }
    }
    return c;""": sum(x ^ y for y in range(200) for x in range(y + 1)),
    """u16 {
    var t = @zeros([N]u16);
    var i: u16 = 0;
    while (i < N) : (i += 1) { t[i] = if (i < 2) i else (t[i - 1] + t[i - 2]) % 1000; }
    return t[N - 1];""": _fibonacci(N),
    """u16 {
    var p = Pair{ .x = 0, .y = 1 };
    for (@range(u16, N)) |i| { p = Pair{ .x = p.y, .y = (p.x + p.y + i) % 997 }; }
    return p.x;""": _pair(N),
    """u16 {
    var a: u16 = 0;
    const q = &a;
    for (@range(u16, N)) |i| { q.* += i % 3; bump(q); }
    return a;""": 2 * N,
    """u32 {
    var s: u32 = 0;
    for (@range(u32, N)) |i| { s += @strlen(@strcat("pe", if (i % 3 == 0) "" else "_odd")); }
    return s;""": sum(2 if i % 3 == 0 else 6 for i in range(N)),
}
HELPERS = f"""
const N = {N};
fn is_prime(n: u16) bool {{
  var d: u16 = 2;
  while (d * d <= n) : (d += 1) {{ if (n % d == 0) {{ return false; }} }}
  return true;
}}
const Pair = struct {{ x: u16, y: u16 }};
fn bump(p: *u16) void {{ p.* += 1; }}
"""


@pytest.mark.parametrize("body", RESULTS)
def test_a_long_loop_gives_what_python_says(body: str) -> None:
    text = f"{HELPERS} fn result() {body} }} const it = result();"
    assert known(text).value == RESULTS[body]


LATE: dict[str, str] = {
    "t[i * 2] = 1;": "index 100 is out of bounds of type '[100]u16'",
    "t[0] += 100 / (70 - i);": "division by zero",
    "const b: u8 = i * 4;": "value 256 does not fit in type 'u8'",
    "t[0] += unset[i];": "use of an undefined value",
    "@comptime_assert(i * i != 8100);": "comptime_assert failed",
    "t[0] = at(i);": "index 100 is out of bounds of type '[100]u16'",
}


@pytest.mark.parametrize("body", LATE)
def test_an_error_in_a_late_iteration_is_that_iterations(body: str) -> None:
    text = f"""
      fn at(i: u16) u16 {{ const t = @zeros([100]u16); return t[i]; }}
      fn result() u16 {{
        var t = @zeros([100]u16);
        var unset: [120]u16;
        for (@range(u16, 90)) |i| {{ unset[i] = i; }}
        for (@range(u16, 120)) |i| {{ {body} t[1] += 1; }}
        return t[1];
      }}
      comptime {{ @comptime_assert(result() > 0); }}"""
    assert messages(text) == [LATE[body]]


def test_a_width_that_cuts_a_late_result_is_told_with_its_first_number() -> None:
    text = "fn f() u16 { var s: u16 = 0; for (@range(u16, 500)) |i| { s += i; } return s; }"
    sema = new_sema(FILE, {}, CompileOptions(), imports_of(text + " const it = f();"))
    start_module(sema, sema.module)
    sema.find_global(sema.module, "it", sema.module.tree.span)
    (found,) = sema.diagnostics
    assert found.message == "'s += i' is 65703, which a 'u16' holds as 167"


@pytest.mark.parametrize(("limit", "is_enough"), [(1001, True), (1000, False)])
def test_steps_are_counted_as_if_each_iteration_was_evaluated(limit: int, is_enough: bool) -> None:
    text = """
      fn one(i: u32) u32 { return i; }
      fn result() u32 { var s: u32 = 0; for (@range(u32, 500)) |i| { s += one(i); } return s; }
      comptime { @comptime_assert(result() == 124750); }"""
    told = ["exceeded the maximum of 1000 calls and iterations at compile time"]
    options = CompileOptions(comptime_step_limit=limit)
    assert messages(text, options) == ([] if is_enough else told)


def test_a_print_in_a_long_loop_is_printed_by_each_iteration() -> None:
    text = """comptime {
      var s: u32 = 0;
      for (@range(u32, 100)) |i| { s += i; if (i % 40 == 0) { @comptime_print(s); } } }"""
    assert analyze(text).printed == ("0", "820", "3240")


def test_an_iteration_that_cannot_be_noted_to_its_end_goes_on() -> None:
    text = """comptime {
      var s: u32 = 0;
      for (@range(u32, 90)) |i| {
        var list = @zeros([4]u32);
        list[i % 4] = i;
        @comptime_print(list[i % 4]);
        list[i % 4] += 1;
        s += list[i % 4];
      }
      @comptime_print(s); }"""
    assert analyze(text).printed == (*map(str, range(90)), str(sum(range(91))))


def test_the_same_loop_reads_the_variables_of_each_call() -> None:
    text = """
      fn sum(a: u32) u32 {
        var s: comptime_struct = .{ .x = a };
        var t: u32 = 0;
        for (@range(u32, 60)) |i| { t += s.x; }
        return t;
      }
      const it = [3]u32{ sum(1), sum(2), sum(30) };"""
    assert known(text).value == (60, 120, 1800)


@pytest.mark.parametrize("place", ["s", "pointer.*"])
def test_a_loop_goes_on_with_the_fields_of_a_struct_of_another_type(place: str) -> None:
    text = f"""
      fn total(pointer: anytype) u32 {{
        var s: comptime_struct = pointer.*;
        var t: u32 = 0;
        for (@range(u32, 60)) |i| {{
          for (@range(u32, 10)) |_| {{ t += @as(u32, {place}.a); }}
          if (i == 40) {{ {place} = .{{ .b = 5, .a = 9 }}; }}
        }}
        return t;
      }}
      comptime {{ var s: comptime_struct = .{{ .a = 1, .b = 2 }}; @comptime_print(total(&s)); }}"""
    assert analyze(text).printed == (str(10 * (41 + 19 * 9)),)


def test_loops_inside_of_loops_share_what_is_pointed_to() -> None:
    text = """
      fn add(p: *u32) void {
        for (@range(u32, 40)) |i| {
          p.* += i;
          for (@range(u32, 12)) |_| { for (@range(u32, 12)) |j| { p.* += j; } }
          p.* += p.* % 7;
        }
      }
      comptime { var x: u32 = 0; add(&x); @comptime_print(x); }"""
    x = 0
    for i in range(40):
        x += i + 12 * sum(range(12))
        x += x % 7
    assert analyze(text).printed == (str(x),)


def test_a_layouts_loops_that_count_their_pes_count_each() -> None:
    text = """layout {
      @set_rectangle(40, 30);
      var number: u16 = 0;
      for (@range(u16, 40)) |x| { for (@range(u16, 30)) |y| { if (x != y) { number += 1; } } }
      @comptime_print(number);
    }"""
    state = LayoutState()
    run_layout(FILE, {}, CompileOptions(), imports_of(text), state)
    assert state.printed == ["1170"]


def test_a_long_loop_is_evaluated_in_its_first_iterations_only() -> None:
    text = "fn f() u64 { var s: u64 = 0; for (@range(u64, 20000)) |i| { s += i; } return s; }"
    assert _num_calls("evaluate", lambda: known(text + "const it = f();")) < 2000


def _num_calls(name: str, action: Callable[[], object]) -> int:
    """How often a function of that name is called."""
    calls = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_name == name

    outer = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(outer)
    return calls
