"""A program for the debugger: two PEs add squares up; the second may wait for ever."""

from pathlib import Path

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.debug.session import Debugger
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.host import journal as journals

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  for (@range(u16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .me = x });
  }
  @export_name("main", fn(i16) void);
  @export_name("hang", fn() void);
}
"""
CODE = """param memcpy_params;
param me: u16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const Color = enum(u16) { red = 3, green = 5 };
const Pair = struct { a: i16, b: f32 };
var y = @zeros([2,2]f32);
var pair = Pair{ .a = 1, .b = 2.5 };
var at: *i16 = &pair.a;
var shade = Color.green;
var half: f16 = -1.5;
fn square(v: f32) f32 {
  var w: f32 = v * v;
  return w;
}
fn main(n: i16) void {
  var total: f32 = 0.0;
  for (@range(i16, n)) |i| {
    total += square(@as(f32, i));
    y[i / 2, i % 2] = total;
    pair.a = i;
    half = half + 1.0;
  }
  if (me == 0) { shade = Color.red; at.* = 7; }
  sys.unblock_cmd_stream();
}
fn hang() void {
  if (me == 0) {
    sys.unblock_cmd_stream();
  }
}
comptime { @export_symbol(main); @export_symbol(hang); }
"""


def line_of(text: str) -> int:
    """Number of the first line that holds a text."""
    return next(n for n, line in enumerate(CODE.splitlines(), 1) if text in line)


def ran(folder: Path, *, hangs: bool = False, arch: Arch = Arch.WSE3, code: str = CODE) -> None:
    """Compile it and keep the journal of a run in a folder."""
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(code, encoding="utf-8")
    compiled = wafer.compile(folder / "layout.csl", arch=arch)
    compiled.save(folder / "out")
    journal = folder / "run.journal"
    runtime = Runtime(compiled.program, RuntimeOptions(log_folder=None, journal=journal))
    runtime.load()
    runtime.run()
    try:
        runtime.launch("main", 4)
        if hangs:
            runtime.launch("hang")
        runtime.stop()
    except OpenwaferError:
        assert hangs


def debugged(folder: Path, *, hangs: bool = False, arch: Arch = Arch.WSE3) -> Debugger:
    """A debugger of such a run."""
    ran(folder, hangs=hangs, arch=arch)
    return debugger_of(folder)


def debugger_of(folder: Path, **options: int) -> Debugger:
    """A debugger of the run that a folder keeps."""
    journal = journals.read(folder / "run.journal")
    return Debugger(wafer.load(folder / "out").program, journal, **options)
