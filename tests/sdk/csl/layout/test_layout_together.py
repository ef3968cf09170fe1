"""Loops of the layout are followed together, and mean what they mean one iteration at a time."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.program.program import Program
from tests.tables import case

HEAD = """
const is_walked = false;
const W = 6;
const H = 5;
const a: color = @get_color(1);
const EAST_ONLY = .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } };
const WEST_ONLY = .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ WEST } } };
fn print(x: i16) void { if (is_walked) { @comptime_print(x); } }
fn code(x: i16, y: i16, value: i16) void {
  @set_tile_code(x, y, "pe.csl", .{ .id = value });
  print(x);
}
fn distance(x: i16) i16 { if (x < W / 2) { return x; } return W - 1 - x; }
fn bits(x: i16) i16 {
  var left = x; var found: i16 = 0;
  while (left > 0) : (left /= 2) { found += left % 2; }
  return found;
}
fn path(x: i16) i16 { if (x == 0) { return 0; } return bits(x) + 2 * path(x / 2); }
fn deep(x: i16) i16 { if (x == 0) { return 0; } return deep(x - 1) + 1; }
fn role(x: i16, y: i16) comptime_struct {
  if (x > 0 and bits(y) == 1) { @set_color_config(x, y, a, WEST_ONLY); }
  if (y == 3 and x == 0) { return .{ .is_even = x == 0, .id = y }; }
  return .{ .is_even = bits(x + y) % 2 == 0, .id = path(x) - y };
}
fn kind(x: i16) comptime_struct {
  if (x < 2) { return .{ .id = x, .is_even = x > 3 }; }
  return .{ .id = 7 };
}
fn share(x: i16) f32 { if (x < 2) { return 0.5; } return 0.25; }
var shift: i16 = 1;
fn shifted(x: i16) i16 { if (x > 1) { return shift; } return x * shift; }
fn add(sum: *i16, x: i16) void { if (x > 1) { sum.* += bits(x); } }
fn refused(x: i16) i16 { @comptime_assert(bits(x) < 2, "two bits"); return x; }
layout {
  @set_rectangle(W, H);
"""
PE = """
param id: i16;
param is_even: bool = false;
export var even: bool = is_even;
export var out: i16 = id;
"""

BLOCKS = {
    "ranges": "for (@range(i16, W)) |x| { for (@range(i16, H)) |y| { code(x, y, x * 10 + y); } }",
    "a step down": """for (@range(i16, W - 1, -1, -1)) |x, i| {
      for (@range(i16, H)) |y| { code(x, y, @as(i16, i) * 100 + distance(x)); } }""",
    "choices": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      if (x == 0 or y == H - 1) { code(x, y, 1); } else { code(x, y, x % 2 + 2 * (y % 3)); }
      if (x < y) { @set_color_config(x, y, a, EAST_ONLY); }
      else { if (x > y) { @set_color_config(x, y, a, WEST_ONLY); } } } }""",
    "counted": """var x: i16 = 0;
      while (x < W) : (x += 1) {
        var y: i16 = x;
        while (y < H) : (y += 1) { code(x, y, y - x); }
        y = 0;
        while (y < x and y < H) : (y += 1) { code(x, y, 50); } }""",
    "a count that is read behind its loop": """var y: i16 = 0;
      while (y < H) : (y += 1) { for (@range(i16, W - 1)) |x| { code(x, y, x); } }
      for (@range(i16, H)) |row| { code(W - 1, row, y + row); }""",
    "an index": """const table = [W]i16 { 5, 3, 3, 1, 5, 7 };
      for (@range(i16, W)) |x| { for (@range(i16, H)) |y| { code(x, y, table[x] << 3 | y); } }""",
    "continue": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      if (y == 2) { code(x, y, 9); continue; }
      code(x, y, -x / 2 - y % 2); } }""",
    "break": """for (@range(i16, W)) |x| {
      for (@range(i16, H)) |y| { if (y > x) { break; } code(x, y, y); }
      for (@range(i16, x + 1, H, 1)) |y| { code(x, y, 70); } }""",
    "something carried along": """var n: i16 = 0;
      for (@range(i16, W)) |x| { for (@range(i16, H)) |y| { code(x, y, n); n += y; } }""",
    "local variables": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      var sum: i16 = 0; for (@range(i16, x)) |k| { sum += k; } sum += ~y; code(x, y, sum); } }""",
    "truths": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      var is_even = true; if (y % 2 == 1) { is_even = y < 0; }
      @set_tile_code(x, y, "pe.csl", .{ .id = 3, .is_even = is_even }); print(x); } }""",
    "calls in calls": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      code(x, y, path(x) + 10 * path(distance(x) + y)); } }""",
    "a call that acts": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      const params = role(x, y);
      @set_tile_code(x, y, "pe.csl", params); print(x); } }""",
    "results of two types": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      @set_tile_code(x, y, "pe.csl", kind(x + y)); print(x); } }""",
    "results that are no integers": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      code(x, y, @as(i16, 4.0 * share(x) + 16.0 * share(y))); } }""",
    "a call that stores": """for (@range(i16, W)) |x| { for (@range(i16, H)) |y| {
      var sum: i16 = y; add(&sum, x); add(&sum, y); code(x, y, sum); } }""",
    "a variable between loops": """for (@range(i16, H)) |y| {
      for (@range(i16, 3)) |x| { code(x, y, shifted(x + y)); }
      shift += 1;
      for (@range(i16, 3, W, 1)) |x| { code(x, y, shifted(x - 3 + y)); } }""",
    "numbers beyond 64 bits": """for (@range(u64, W)) |x| { for (@range(i16, H)) |y| {
      const big = (x + 0xffffffffffff0000) >> 2; code(@as(i16, x), y, @as(i16, big & 0xff)); } }""",
}


def build(folder: Path, block: str, *, is_walked: bool = False) -> Program:
    """A program; what prints is followed one iteration after the other."""
    text = f"{HEAD}{block}\n}}"
    (folder / "layout.csl").write_text(text.replace("= false", f"= {str(is_walked).lower()}"))
    (folder / "pe.csl").write_text(PE)
    return build_program(folder / "layout.csl", CompileOptions())


def meaning(program: Program) -> tuple[object, ...]:
    """What each PE was given."""
    data = [program.images[number].data for number in program.image_of.flat]
    routes = [program.routes[number] for number in program.routes_of.flat]
    return data, routes


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
def test_loops_mean_the_same_together_and_one_by_one(block: str, tmp_path: Path) -> None:
    found = meaning(build(tmp_path, block))
    assert found == meaning(build(tmp_path, block, is_walked=True))


def test_lanes_that_part_in_a_call_meet_behind_it(tmp_path: Path) -> None:
    wide = HEAD.replace("W = 6", "W = 40").replace("H = 5", "H = 30")
    body = "code(x, y, path(x) % 3 + path(y) % 2);"
    loops = f"for (@range(i16, W)) |x| {{ for (@range(i16, H)) |y| {{ {body} }} }}"
    (tmp_path / "layout.csl").write_text(f"{wide}{loops}\n}}")
    (tmp_path / "pe.csl").write_text(PE)
    # Ways by x and ways by y; their pairs are 3,890 steps.
    options = CompileOptions(comptime_step_limit=400)
    assert len(build_program(tmp_path / "layout.csl", options).images) == 4


ERRORS = {
    "outside of the rectangle": "for (@range(i16, W + 1)) |x| { code(x, 0, 0); }",
    "a PE twice": "for (@range(i16, W)) |x| { code(x / 2, 0, 0); }",
    "an overflow": "for (@range(i16, W)) |x| { const y: u8 = @as(u8, 250 + x); code(x, 0, y); }",
    "a negative shift": "for (@range(i16, W)) |x| { code(x, 0, @as(i16, 1) << (3 - x)); }",
    "an assertion": 'for (@range(i16, W)) |x| { print(x); @comptime_assert(x != 4, "four"); }',
    "a color twice": """for (@range(i16, W)) |x| {
      for (@range(i16, H)) |y| { @set_color_config(x, y * y / 4, a, EAST_ONLY); } print(x); }""",
    "an assertion of a call": "for (@range(i16, W)) |x| { code(x, 0, refused(x)); }",
    "calls too deep": "for (@range(i16, W)) |x| { code(x, 0, deep(60 * x)); }",
    "no code": "for (@range(i16, W)) |x| { code(x, x % H / 2 * 2, x); if (x == 3) { break; } }",
}


@pytest.mark.parametrize(
    "block",
    [case(one, by_default=name != "calls too deep", id=name) for name, one in ERRORS.items()],
)
def test_errors_are_those_of_the_iterations_one_by_one(block: str, tmp_path: Path) -> None:
    texts = []
    for is_walked in (False, True):
        with pytest.raises(OpenwaferError, match="error") as caught:
            build(tmp_path, block, is_walked=is_walked)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_lines_are_printed_in_the_order_of_the_iterations(tmp_path: Path) -> None:
    program = build(tmp_path, BLOCKS["ranges"], is_walked=True)
    assert program.printed == tuple(str(x) for x in range(6) for _ in range(5))


@pytest.mark.slow
def test_a_whole_wafer_is_laid_out(tmp_path: Path) -> None:
    text = f"{HEAD}{BLOCKS['choices']}\n}}".replace("W = 6", "W = 750").replace("H = 5", "H = 994")
    (tmp_path / "layout.csl").write_text(text)
    (tmp_path / "pe.csl").write_text(PE)
    program = build_program(tmp_path / "layout.csl", CompileOptions())
    given = np.array([int.from_bytes(image.data[-2:], "little") for image in program.images])
    y, x = np.indices((994, 750))
    expected = np.where((x == 0) | (y == 993), 1, x % 2 + 2 * (y % 3))
    assert (given[program.image_of] == expected).all()
