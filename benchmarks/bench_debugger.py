"""What the debugger costs: a stop far into a run, steps back, and its snapshots.

python benchmarks/bench_debugger.py --cycles 10000000 --size 1 8
"""

import argparse
import tempfile
import time
from pathlib import Path

import openwafer.sdk as wafer
from openwafer.sdk.debug import Debugger
from openwafer.sdk.host import RuntimeOptions
from openwafer.sdk.host import journal as journals

STEPS = 10
LAYOUT = """
param size: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = size, .height = size });
layout {
  @set_rectangle(size, size);
  for (@range(u16, size)) |x| {
    for (@range(u16, size)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x) });
    }
  }
  @export_name("main", fn(u32) void);
}
"""
CODE = """
param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var sum: f32 = 0.0;
fn main(num: u32) void {
  for (@range(u32, num)) |i| {
    sum = sum * 0.5 + @as(f32, i);
  }
  sum += 1.0;
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(main); }
"""
LAST_LINE = 1 + next(n for n, line in enumerate(CODE.splitlines()) if "sum += 1.0" in line)


def ran(program: wafer.Compiled, turns: int, folder: Path) -> tuple[journals.Journal, int]:
    """The journal of a run whose loop has so many turns, and its cycles."""
    path = folder / "run.journal"
    with program.run(RuntimeOptions(log_folder=None, journal=path)) as run:
        run.launch("main", turns)
    return journals.read(path), run.cycles


def row(size: int, cycles: int, folder: Path) -> str:
    """A row of the table; seconds of the clock."""
    program = wafer.compile(folder / "layout.csl", params={"size": size})
    few, more = (ran(program, turns, folder)[1] for turns in (100, 200))
    journal, _ = ran(program, 100 * cycles // (more - few), folder)
    begin = time.perf_counter()
    debugger = Debugger(program.program, journal)
    debugger.breakpoints.add("pe.csl", LAST_LINE)
    at = debugger.go_on().cycle
    stopped, begin = time.perf_counter() - begin, time.perf_counter()
    for _ in range(STEPS):
        debugger.step_back(0)
    back = (time.perf_counter() - begin) / STEPS
    value = debugger.look(0).evaluator.variable("sum")
    begin = time.perf_counter()
    debugger.go_to_writer("sum", 0, value)
    who = time.perf_counter() - begin
    kept = f"{debugger.num_snapshots} of {debugger.snapshot_bytes / 2**20:.1f} MiB"
    return f"| {size} x {size} | {at:,} | {stopped:.2f} | {back:.3f} | {who:.3f} | {kept} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=10_000_000, help="of the run, about")
    parser.add_argument("--size", type=int, nargs="*", default=[1, 8], help="PEs of a side")
    given = parser.parse_args()
    print("| PEs | cycle of the stop | to it, s | a step back, s | who, s | snapshots |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
        (folder / "pe.csl").write_text(CODE, encoding="utf-8")
        for size in given.size:
            print(row(size, given.cycles, folder), flush=True)


if __name__ == "__main__":
    main()
