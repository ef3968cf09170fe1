"""Small programs with a known bottleneck each, and a param that takes it away."""

from dataclasses import dataclass
from pathlib import Path

import openwafer.sdk as wafer
from openwafer.sdk.profile import CriticalPath, critical_path

LAYOUT = """
param width: u16;
param height: u16;
param is_slow: bool;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = width, .height = height });
const red = @get_color(2);
const blue = @get_color(3);
layout {
  @set_rectangle(width, height);
  for (@range(u16, width)) |x| {
    for (@range(u16, height)) |y| {
      @set_tile_code(x, y, "pe.csl", .{
        .memcpy_params = memcpy.get_params(x), .x = x, .y = y, .width = width,
        .is_slow = is_slow, .red = red, .blue = blue });
    }
  }
ROUTES
  @export_name("main", fn() void);
}
"""
HEAD = """
param memcpy_params;
param x: u16;
param y: u16;
param width: u16;
param is_slow: bool;
param red: color;
param blue: color;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const done_id = @get_local_task_id(9);
task done() void { sys.unblock_cmd_stream(); }
fn wait(n: u16) void {
  var sum: u16 = 0;
  for (@range(u16, n)) |i| { sum = (sum << 1) ^ i; }
  result[0] = sum;
}
var result: [1]u16;
"""
TAIL = """
comptime {
  @bind_local_task(done, done_id);
  @export_symbol(main);
}
"""

LONG_VECTOR = """
const length: u16 = 2400 / width;
var a: [length]f32;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{length} -> a[i] });
fn main() void {
  @fmuls(all, all, 2.0);
  sys.unblock_cmd_stream();
}
"""

LONG_IN_ONE_BANK = """
const length: u16 = 1600 / width;
var data: [2 * length]f32;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{length} -> data[i] });
const other = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{length} -> data[i + length] });
fn main() void {
  @fadds(all, all, other);
  sys.unblock_cmd_stream();
}
"""

ONE_BANK = """
const length: u16 = 800;
const offset: u16 = if (is_slow) length else length + 2;
var data: [2 * length + 2]f32;
var target: [length]f32;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{length} -> target[i] });
const first = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{length} -> data[i] });
const second = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{length} -> data[i + offset] });
fn main() void {
  @fadds(all, first, second);
  sys.unblock_cmd_stream();
}
"""

STREAM = """
const length: u16 = 300;
var words: [length]u32;
const memory = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{length} -> words[i] });
const red_in = @get_input_queue(2);
const blue_in = @get_input_queue(3);
const red_out = @get_output_queue(2);
const blue_out = @get_output_queue(3);
const to_red = @get_dsd(fabout_dsd, .{ .extent = length, .output_queue = red_out });
const to_blue = @get_dsd(fabout_dsd, .{ .extent = length, .output_queue = blue_out });
const from_red = @get_dsd(fabin_dsd, .{ .extent = length, .input_queue = red_in });
const from_blue = @get_dsd(fabin_dsd, .{ .extent = length, .input_queue = blue_in });
fn main() void {
  if (y == 0 and x == 0) {
    @mov32(to_red, memory, .{ .async = true, .activate = done });
  } else if (y == 0 and x == 1) {
    @mov32(to_blue, memory, .{ .async = true, .activate = done });
  } else if (y == 0 and x == 2) {
    @mov32(memory, from_red, .{ .async = true, .activate = done });
  } else if (y == 0 and x == 3) {
    @mov32(memory, from_blue, .{ .async = true, .activate = done });
  } else {
    sys.unblock_cmd_stream();
  }
}
comptime {
  @initialize_queue(red_in, .{ .color = red });
  @initialize_queue(blue_in, .{ .color = blue });
  @initialize_queue(red_out, .{ .color = red });
  @initialize_queue(blue_out, .{ .color = blue });
}
"""
STREAM_ROUTES = """
  @set_color_config(0, 0, red, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, red, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ EAST } } });
  @set_color_config(2, 0, red, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  if (is_slow) {
    @set_color_config(1, 0, blue, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
    @set_color_config(2, 0, blue, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ EAST } } });
    @set_color_config(3, 0, blue, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  } else {
    @set_color_config(1, 0, blue, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ SOUTH } } });
    @set_color_config(1, 1, blue, .{ .routes = .{ .rx = .{ NORTH }, .tx = .{ EAST } } });
    @set_color_config(2, 1, blue, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ EAST } } });
    @set_color_config(3, 1, blue, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ NORTH } } });
    @set_color_config(3, 0, blue, .{ .routes = .{ .rx = .{ SOUTH }, .tx = .{ RAMP } } });
  }
"""

SHORT_QUEUE = """
const length: u16 = 16;
var words: [length]u32;
const memory = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{length} -> words[i] });
// On WSE-2 queues 4 hold two wavelets each, queues 2 six and four.
const out = @get_output_queue(if (is_slow) 4 else 2);
const in = @get_input_queue(if (is_slow) 4 else 2);
const sent = @get_dsd(fabout_dsd, .{ .extent = length, .fabric_color = red, .output_queue = out });
const received = @get_dsd(fabin_dsd, .{ .extent = length, .fabric_color = red, .input_queue = in });
fn main() void {
  if (x == 0) {
    @mov32(sent, memory);
    wait(40);
  } else {
    wait(25);
    @mov32(memory, received);
  }
  sys.unblock_cmd_stream();
}
comptime {
  @initialize_queue(in, .{ .color = red });
}
"""
SHORT_ROUTES = """
  @set_color_config(0, 0, red, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, red, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
"""

WORDS = """
const long: u16 = 400;
const num_words: u16 = 40;
var words: [long]u32;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{long} -> words[i] });
const some = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{num_words} -> words[i] });
const other = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{num_words} -> words[i + num_words] });
const first = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> words[i] });
const red_in = @get_input_queue(2);
const blue_in = @get_input_queue(3);
const red_out = @get_output_queue(2);
const blue_out = @get_output_queue(3);
const to_red = @get_dsd(fabout_dsd, .{ .extent = num_words, .output_queue = red_out });
const got_id = @get_data_task_id(red_in);
var num_got: u16 = 0;
comptime {
  @bind_data_task(got, got_id);
  @initialize_queue(red_in, .{ .color = red });
  @initialize_queue(blue_in, .{ .color = blue });
  @initialize_queue(red_out, .{ .color = red });
  @initialize_queue(blue_out, .{ .color = blue });
}
"""
BLOCKED = """
const to_blue = @get_dsd(fabout_dsd, .{ .extent = long, .output_queue = blue_out });
const from_blue = @get_dsd(fabin_dsd, .{ .extent = long, .input_queue = blue_in });
task got(word: u32) void {
  num_got += 1;
  if (num_got == num_words) { sys.unblock_cmd_stream(); }
}
fn main() void {
  if (x == 0) {
    @mov32(to_red, some, .{ .async = true, .activate = done });
    @mov32(to_blue, all, .{ .async = true });
  } else {
    if (is_slow) { @block(got_id); }
    @mov32(all, from_blue, .{ .async = true, .unblock = got_id });
  }
}
"""
BLOCKED_ROUTES = """
  @set_color_config(0, 0, blue, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, blue, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
"""

BLOCKS_ITSELF = """
const to_blue = @get_dsd(fabout_dsd, .{ .extent = 1, .output_queue = blue_out });
const from_blue = @get_dsd(fabin_dsd, .{ .extent = num_words, .input_queue = blue_in });
task got(word: u32) void {
  if (is_slow) { @block(got_id); }
  num_got += 1;
  if (num_got == num_words) { sys.unblock_cmd_stream(); }
  @mov32(to_blue, first, .{ .async = true, .unblock = got_id });
}
fn main() void {
  if (x == 0) {
    @mov32(to_red, some, .{ .async = true });
    @mov32(other, from_blue, .{ .async = true, .activate = done });
  }
}
"""
BLOCKS_ITSELF_ROUTES = """
  @set_color_config(1, 0, blue, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ WEST } } });
  @set_color_config(0, 0, blue, .{ .routes = .{ .rx = .{ EAST }, .tx = .{ RAMP } } });
"""


@dataclass(frozen=True)
class Bottleneck:
    """A program with a bottleneck, and how to take that away: by `is_slow`, or by its size."""

    code: str
    routes: str = ""
    slow: tuple[int, int] = (1, 1)
    fast: tuple[int, int] = (1, 1)
    arch: str = "wse3"


BOTTLENECKS = {
    "a long vector": Bottleneck(LONG_VECTOR, fast=(2, 1)),
    "a long vector in one bank": Bottleneck(LONG_IN_ONE_BANK, fast=(2, 1)),
    "one bank": Bottleneck(ONE_BANK),
    "a shared link": Bottleneck(STREAM, STREAM_ROUTES, (4, 2), (4, 2)),
    "a short queue": Bottleneck(SHORT_QUEUE, SHORT_ROUTES, (2, 1), (2, 1), "wse2"),
    "a blocked task": Bottleneck(WORDS + BLOCKED, SHORT_ROUTES + BLOCKED_ROUTES, (2, 1), (2, 1)),
}
TASK_THAT_BLOCKS_ITSELF = Bottleneck(
    WORDS + BLOCKS_ITSELF, SHORT_ROUTES + BLOCKS_ITSELF_ROUTES, (2, 1), (2, 1)
)
"""Until an operation of one word has ended, which is over before its next task could begin."""


def path_of(folder: Path, program: Bottleneck, *, is_slow: bool) -> CriticalPath:
    """The critical path of a launch of `main`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "layout.csl").write_text(LAYOUT.replace("ROUTES", program.routes), encoding="utf-8")
    (folder / "pe.csl").write_text(HEAD + program.code + TAIL, encoding="utf-8")
    width, height = program.slow if is_slow else program.fast
    params = {"width": width, "height": height, "is_slow": is_slow}
    compiled = wafer.compile(folder / "layout.csl", arch=program.arch, params=params)
    with compiled.run(record=folder / "run.record") as run:
        run.launch("main")
        last = run.cycles
    record = wafer.read_record(folder / "run.record")
    return critical_path(record, compiled.program, last=last)
