"""What a run does depends on program and inputs only, not on hash seeds or the host's haste."""

import hashlib
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import numpy as np

from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.program.file import write
from openwafer.sdk.program.program import Program

_PE = """
param memcpy_params: comptime_struct;
param red: color;
param blue: color;
param green: color;
param x: i16;
const memcpy = @import_module("<memcpy/memcpy>", memcpy_params);
const math = @import_module("<math>");
const sent = @get_output_queue(2);
const received = @get_input_queue(3);
const done = @get_local_task_id(9);
const later = @get_local_task_id(10);
var A: [8]f32;
var B: [8]f32;
const ptr_A: [*]f32 = &A;
const ptr_B: [*]f32 = &B;
const a = @get_dsd(mem1d_dsd, .{ .base_address = &A, .extent = 8 });
const b = @get_dsd(mem1d_dsd, .{ .base_address = &B, .extent = 8 });
const out = @get_dsd(fabout_dsd, .{ .fabric_color = red, .extent = 8, .output_queue = sent });
const in = @get_dsd(fabin_dsd, .{ .fabric_color = red, .extent = 8, .input_queue = received });

task last() void { A[0] = math.sqrt(A[1]); memcpy.unblock_cmd_stream(); }
task end() void { @fadds(a, a, b); @activate(later); }

fn main() void {
  if (x == 0) {
    @fmovs(out, a, .{ .async = true, .activate = done });
  } else {
    @fmovs(b, in, .{ .async = true, .activate = done });
  }
}

comptime {
  @bind_local_task(end, done);
  @bind_local_task(last, later);
  @initialize_queue(sent, .{ .color = red });
  @initialize_queue(received, .{ .color = red });
  @export_symbol(ptr_A, "A");
  @export_symbol(ptr_B, "B");
  @export_symbol(main);
}
"""
_LAYOUT = """
const red: color = @get_color(1);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  for (@range(i16, 2)) |x| @set_tile_code(x, 0, "pe.csl", .{
    .memcpy_params = memcpy.get_params(x), .x = x,
    .red = red, .blue = @get_color(2), .green = @get_color(5) });
  @set_color_config(0, 0, red, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
  @set_color_config(1, 0, red, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
  @export_name("A", [*]f32, true);
  @export_name("B", [*]f32, true);
  @export_name("main", fn()void);
}
"""
_DIGEST = """
import sys
from pathlib import Path
from tests.sdk.host.test_same_cycles import digest_of
sys.stdout.write(digest_of(Path(".")))
"""
_ALL = Region(0, 0, 2, 1, 8)
_ROOT = Path(__file__).parents[3]


def compiled(folder: Path) -> Program:
    (folder / "pe.csl").write_text(_PE, encoding="utf-8")
    (folder / "layout.csl").write_text(_LAYOUT, encoding="utf-8")
    with chdir(folder):
        return build_program(Path("layout.csl"), CompileOptions(is_memcpy=True))


def ran(program: Program, order: tuple[str, str], *, nonblock: bool = False) -> tuple[int, bytes]:
    """Cycle at the end, and A, when the two arrays are written in an order."""
    runtime = Runtime(program, RuntimeOptions(log_folder=None))
    runtime.load()
    runtime.run()
    words = np.arange(16, dtype=np.float32).view(np.uint32).reshape(_ALL.shape)
    for name in order:
        runtime.copy_to_device(runtime.get_id(name), words, _ALL, nonblock=nonblock)
    runtime.launch("main", nonblock=nonblock)
    read: list[bytes] = []
    runtime.copy_from_device(lambda got: read.append(got.tobytes()), runtime.get_id("A"), _ALL)
    runtime.stop()
    return runtime.cycle, read[0]


def test_the_order_of_copies_and_when_they_are_asked_for_change_nothing(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    runs = {
        ran(program, order, nonblock=nonblock)
        for order in (("A", "B"), ("B", "A"))
        for nonblock in (False, True)
    }
    assert len(runs) == 1


def digest_of(folder: Path) -> str:
    """What is compiled in a folder, and how it runs."""
    program = compiled(folder)
    write(program, folder / "program")
    digest = hashlib.sha256((folder / "program").read_bytes()).hexdigest()
    return f"{digest} {ran(program, ('A', 'B'))}"


def digest_elsewhere(folder: Path, seed: str) -> str:
    """The same of another process, its caches empty but for the simulator's own."""
    cache = folder / f"cache{seed}"
    places = {"OPENWAFER_CACHE": str(cache), "PYTHONHASHSEED": seed}
    paths = f"{_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    cache.mkdir()
    found = subprocess.run(
        [sys.executable, "-c", _DIGEST],
        cwd=folder,
        env=os.environ | places | {"PYTHONPATH": paths},
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout


def test_hash_seeds_change_neither_the_program_nor_its_cycles(tmp_path: Path) -> None:
    # This process has drawn its own seed.
    assert digest_elsewhere(tmp_path, "0") == digest_of(tmp_path)
