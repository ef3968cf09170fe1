"""A program that the host copies to and from in every type, launches and streams through."""

from pathlib import Path

import openwafer.sdk as wafer

LAYOUT = """
param width: u16;
param height: u16;
const to_device = @get_color(4);
const to_host = @get_color(5);
const memcpy = @import_module("<memcpy/get_params>", .{
  .width = width, .height = height, .MEMCPYH2D_1 = to_device, .MEMCPYD2H_1 = to_host });
layout {
  @set_rectangle(width, height);
  for (@range(u16, width)) |x| {
    for (@range(u16, height)) |y| {
      @set_tile_code(x, y, "pe.csl", .{
        .memcpy_params = memcpy.get_params(x), .length = if (x == 2) 4 else 3,
        .to_device = to_device, .to_host = to_host });
    }
  }
  @export_name("single", [*]f32, true);
  @export_name("half", [*]f16, true);
  @export_name("count", [*]u16, true);
  @export_name("signed", [*]i32, true);
  @export_name("uneven", [*]f32, true);
  @export_name("flag", [*]bool, true);
  @export_name("add", fn(f32, i16) void);
  @export_name("never", fn() void);
}
"""
CODE = """
param memcpy_params;
param length: u16;
param to_device: color;
param to_host: color;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const from_host = @get_input_queue(2);
const answers = @get_output_queue(3);
const echo_id = @get_data_task_id(from_host);
var single: [3]f32; var half: [2]f16; var count: [1]u16; var signed: [2]i32; var flag: [1]bool;
var uneven: [length]f32;
var single_ptr: [*]f32 = &single; var half_ptr: [*]f16 = &half; var count_ptr: [*]u16 = &count;
var signed_ptr: [*]i32 = &signed; var uneven_ptr: [*]f32 = &uneven; var flag_ptr: [*]bool = &flag;
fn add(term: f32, factor: i16) void {
  for (@range(u16, 3)) |i| { single[i] = single[i] * @as(f32, factor) + term; }
  sys.unblock_cmd_stream();
}
fn never() void {}
task echo(value: f32) void {
  const out = @get_dsd(fabout_dsd,
    .{ .extent = 1, .fabric_color = to_host, .output_queue = answers });
  @fmovs(out, 2.0 * value);
}
comptime {
  @bind_data_task(echo, echo_id);
  @initialize_queue(from_host, .{ .color = to_device });
  @initialize_queue(answers, .{ .color = to_host });
  @export_symbol(single_ptr, "single"); @export_symbol(half_ptr, "half");
  @export_symbol(count_ptr, "count"); @export_symbol(signed_ptr, "signed");
  @export_symbol(uneven_ptr, "uneven"); @export_symbol(flag_ptr, "flag");
  @export_symbol(add); @export_symbol(never);
}
"""


def small_program(folder: Path, width: int = 3, height: int = 2) -> wafer.Compiled:
    """The program above, compiled."""
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(CODE, encoding="utf-8")
    return wafer.compile(folder / "layout.csl", params={"width": width, "height": height})
