"""A program for editors: two launches of a function with an expansion, of which the last traps."""

from pathlib import Path

import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.host import Runtime, RuntimeOptions

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("main", fn(i16) void);
}
"""
CODE = """param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var values = [4]i16{ 5, 6, 7, 8 };
var last: i16 = 0;
inline fn doubled(value: i16) i16 {
  last = value;
  return value + value;
}
fn main(at: i16) void {
  values[at] = doubled(values[at]);
  @assert(values[at] < 14);
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(main); }
"""


def line_of(text: str) -> int:
    """Number of the first line that holds a text."""
    return next(n for n, line in enumerate(CODE.splitlines(), 1) if text in line)


def ran(folder: Path, arch: Arch) -> None:
    """Compile it, and keep the journal of a run that launches it for elements 0, 1 and 3."""
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(CODE, encoding="utf-8")
    compiled = wafer.compile(folder / "layout.csl", arch=arch)
    compiled.save(folder / "out")
    options = RuntimeOptions(log_folder=None, journal=folder / "run.journal")
    runtime = Runtime(compiled.program, options)
    runtime.load()
    runtime.run()
    for at in (0, 1, 3):
        runtime.launch("main", at)
    with pytest.raises(OpenwaferError, match="an assertion failed"):
        runtime.stop()
