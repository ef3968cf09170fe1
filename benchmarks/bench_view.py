"""How soon `openwafer view` shows a recorded run, from its command to what is drawn.

The PEs of the run multiply, send to their neighbours and get from them all the time. The run is
kept as those of scripts are, by OPENWAFER_JOURNAL; then its command is given several times, each
with a page in a headless Chromium that is there already.

    python benchmarks/bench_view.py --size 64 --cycles 100000
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

import openwafer.sdk as wafer
from openwafer.sdk.host.journal import JOURNAL_VARIABLE
from openwafer.view.kept import kept_path
from tests.view.chromium import CHROMIUM, Page, chromium_page

IS_LIVE = "document.body?.dataset.ready !== 'yes' || document.body.dataset.live !== undefined"
LOOK_SECONDS = 0.5
LAYOUT = """
param size: u16;
param work: u16;
param words: u16;
const to_east = @get_color(0);
const to_west = @get_color(1);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = size, .height = size });
layout {
  @set_rectangle(size, size);
  for (@range(u16, size)) |x| {
    const is_left = x % 2 == 0;
    const out = if (is_left) to_east else to_west;
    const in = if (is_left) to_west else to_east;
    for (@range(u16, size)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x),
        .out = out, .in = in, .work = work, .words = words });
      if (is_left) {
        @set_color_config(x, y, out, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
        @set_color_config(x, y, in, .{ .routes = .{ .rx = .{ EAST }, .tx = .{ RAMP } } });
      } else {
        @set_color_config(x, y, out, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ WEST } } });
        @set_color_config(x, y, in, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
      }
    }
  }
  @export_name("begin", fn(u16) void);
}
"""
CODE = """
param memcpy_params;
param out: color;
param in: color;
param work: u16;
param words: u16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const in_queue = @get_input_queue(2);
const out_queue = @get_output_queue(3);
const turn_id = @get_local_task_id(8);
var own: [work]f32 = @constants([work]f32, 0.5);
var other: [work]f32 = @constants([work]f32, 0.25);
var left: u16 = 0;
const own_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{work} -> own[i] });
const other_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{work} -> other[i] });
const sent = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{words} -> own[i] });
const got = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{words} -> other[i] });
const out_dsd = @get_dsd(fabout_dsd,
  .{ .extent = words, .fabric_color = out, .output_queue = out_queue });
const in_dsd = @get_dsd(fabin_dsd,
  .{ .extent = words, .fabric_color = in, .input_queue = in_queue });

task turn() void {
  @fmacs(own_dsd, own_dsd, other_dsd, 0.5);
  if (left == 0) {
    sys.unblock_cmd_stream();
    return;
  }
  left -= 1;
  @fmovs(out_dsd, sent, .{ .async = true });
  @fmovs(got, in_dsd, .{ .async = true, .activate = turn });
}

fn begin(turns: u16) void {
  left = turns;
  @activate(turn_id);
}

comptime {
  @bind_local_task(turn, turn_id);
  @initialize_queue(in_queue, .{ .color = in });
  if (@is_arch("wse3")) @initialize_queue(out_queue, .{ .color = out });
  @export_symbol(begin);
}
"""


@dataclass(frozen=True)
class Opening:
    """Seconds from the command to its address, and to what is drawn; what the page shows then."""

    address: float
    drawn: float
    whole: float
    spans: int


def recorded(program: wafer.Compiled, turns: int, folder: Path) -> int:
    """Keep a run in a folder; its cycles."""
    os.environ[JOURNAL_VARIABLE] = str(folder)
    with program.run(wafer.RuntimeOptions(log_folder=None)) as run:
        run.launch("begin", turns)
    return run.cycles


def run_of(cycles: int, program: wafer.Compiled, folder: Path) -> tuple[Path, int]:
    """The journal of a run that takes about so many cycles, and these."""
    few, more = (recorded(program, turns, folder / "probes") for turns in (10, 20))
    taken = recorded(program, 10 * cycles // (more - few), folder / "runs")
    (journal,) = (folder / "runs").glob("*.journal")
    return journal, taken


@contextmanager
def viewed(run: Path) -> Iterator[str]:
    """The address that the command says."""
    command = [sys.executable, "-m", "openwafer", "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def opened(run: Path, page: Page, *, until_whole: bool) -> Opening:
    """Give the command, open its page, and wait until it shows the whole run if asked to."""
    begin = time.perf_counter()
    with viewed(run) as url:
        address = time.perf_counter() - begin
        page.open(url)
        drawn = time.perf_counter() - begin
        spans = page.run("openwafer.columns.length('span.begin')")
        while until_whole and page.run(IS_LIVE):
            time.sleep(LOOK_SECONDS)
        return Opening(address, drawn, time.perf_counter() - begin, spans)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=64, help="PEs of a side, an even number")
    parser.add_argument("--cycles", type=int, default=100_000, help="of the run, about")
    parser.add_argument("--work", type=int, default=200, help="multiply-adds of a turn")
    parser.add_argument("--words", type=int, default=4, help="words that a PE sends in a turn")
    parser.add_argument("--times", type=int, default=3, help="how often it is opened again")
    given = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
        (folder / "pe.csl").write_text(CODE, encoding="utf-8")
        params = {name: getattr(given, name) for name in ("size", "work", "words")}
        program = wafer.compile(folder / "layout.csl", params=params)
        run, cycles = run_of(given.cycles, program, folder)
        print(f"{given.size} x {given.size} PEs, {cycles:,} cycles")
        if CHROMIUM is None:
            print("there is no chromium here, so nothing is opened")
            return
        print("| opened | address, s | drawn, s | tasks and operations | whole, s |")
        print("| --- | --- | --- | --- | --- |")
        with chromium_page(folder / "browser") as page:
            for number in range(1 + given.times):
                found = opened(run, page, until_whole=not number)
                print(
                    f"| {'again' if number else 'first'} | {found.address:.2f} | {found.drawn:.2f}"
                    f" | {found.spans:,} | {found.whole:.2f} |",
                    flush=True,
                )
        print(f"kept: {kept_path(run).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
