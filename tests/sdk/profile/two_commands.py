"""A program of one PE whose cycles can be computed by hand, with a task and a shared function."""

from pathlib import Path

import openwafer.sdk as wafer

LAYOUT = """\
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("A", [*]f32, true);
  @export_name("scale", fn(f32) void);
  @export_name("never", fn() void);
}
"""
CODE = """\
param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const last_id = @get_local_task_id(9);
var A: [40]f32;
var A_ptr: [*]f32 = &A;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{40} -> A[i] });
fn add(k: f32) void {
  @fmacs(all, all, all, k);
}
task last() void {
  add(2.0);
  sys.unblock_cmd_stream();
}
fn scale(factor: f32) void {
  for (@range(u16, 40)) |i| {
    A[i] *= factor;
  }
  add(3.0);
  @activate(last_id);
}
fn never() void {}
comptime {
  @bind_local_task(last, last_id);
  @export_symbol(A_ptr, "A"); @export_symbol(scale); @export_symbol(never);
}
"""


def two_commands(folder: Path, code: str = CODE) -> wafer.Compiled:
    """The program above, compiled, or one with other code."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(code, encoding="utf-8")
    return wafer.compile(folder / "layout.csl")
