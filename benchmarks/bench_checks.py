"""What checks cost: the same program with and without, run alternately in one process.

One PE adds arrays by scalar code, by vector operations, of floats and of integers, and by scalar
code while a microthread waits for words; and it computes integers. The
figures are seconds of the processor, of the native engine, best of all rounds.

    python benchmarks/bench_checks.py
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import openwafer.sdk as wafer
from openwafer.sdk.host import Check

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("scalars", fn(u16) void);
  @export_name("vectors", fn(u16) void);
  @export_name("sums", fn(u16) void);
  @export_name("in_flight", fn(u16) void);
  @export_name("integers", fn(u16) void);
}
"""
CODE = """
param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const queue = @get_input_queue(2);
const red = @get_color(2);
const from = @get_dsd(fabin_dsd, .{ .fabric_color = red, .extent = 1, .input_queue = queue });
var a = @zeros([1000]f32);
var b = @zeros([1000]f32);
var c = @zeros([1000]u16);
var word = @zeros([1]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = 1000 });
const b_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &b, .extent = 1000 });
const c_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &c, .extent = 1000 });
const word_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &word, .extent = 1 });
fn add(rounds: u16) void {
  for (@range(u16, rounds)) |_| {
    for (@range(u16, 1000)) |i| { a[i] += b[i] * 0.5; }
  }
}
fn scalars(rounds: u16) void { add(rounds); sys.unblock_cmd_stream(); }
fn vectors(rounds: u16) void {
  for (@range(u16, rounds)) |_| { @fmacs(a_dsd, a_dsd, b_dsd, 0.5); }
  sys.unblock_cmd_stream();
}
fn sums(rounds: u16) void {
  for (@range(u16, rounds)) |_| { @add16(c_dsd, c_dsd, 1); }
  sys.unblock_cmd_stream();
}
fn in_flight(rounds: u16) void {
  @fmovs(word_dsd, from, .{ .async = true });
  add(rounds);
  sys.unblock_cmd_stream();
}
fn integers(rounds: u16) void {
  for (@range(u16, rounds)) |_| {
    for (@range(u16, 1000)) |i| { c[i] = (c[i] * 3 + i) & 0xff; }
  }
  sys.unblock_cmd_stream();
}
comptime {
  @initialize_queue(queue, .{ .color = red });
  @export_symbol(scalars); @export_symbol(vectors); @export_symbol(sums);
  @export_symbol(in_flight); @export_symbol(integers);
}
"""
ROUNDS = {
    "scalars": 20_000,
    "vectors": 20_000,
    "sums": 20_000,
    "in_flight": 4_000,
    "integers": 20_000,
}


def seconds(program: wafer.Compiled, function: str, check: Check) -> float:
    """Processor time of one launch."""
    run = program.run(wafer.RuntimeOptions(log_folder=None, check=check))
    begin = time.process_time()
    run.launch(function, ROUNDS[function])
    _ = run.cycles
    return time.process_time() - begin


def main() -> None:
    """Print a row for each kind of code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with TemporaryDirectory() as folder:
        (Path(folder) / "layout.csl").write_text(LAYOUT, encoding="utf-8")
        (Path(folder) / "pe.csl").write_text(CODE, encoding="utf-8")
        program = wafer.compile(Path(folder) / "layout.csl")
    print("| code | s | checked: s | ratio | with wraps: s | ratio |\n|" + " --- |" * 6)
    for function in ROUNDS:
        best = {check: float("inf") for check in (Check.OFF, Check.WARNING, Check.WRAP)}
        for _ in range(repeats):
            for check in best:
                best[check] = min(best[check], seconds(program, function, check))
        off, on, wraps = best.values()
        ratios = f"{on:.3f} | {on / off:.2f} | {wraps:.3f} | {wraps / off:.2f}"
        print(f"| {function} | {off:.3f} | {ratios} |")


if __name__ == "__main__":
    main()
