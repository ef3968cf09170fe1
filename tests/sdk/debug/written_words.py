"""Random programs that write words in all ways, and a plain model of who writes what."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import openwafer.sdk as wafer
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.debug import Debugger
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.host import journal as journals
from openwafer.sdk.program.program import Program

NUM_WORDS = 8
LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
const line = @get_color(0);
layout {
  @set_rectangle(2, 1);
  for (@range(u16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{
      .memcpy_params = memcpy.get_params(x), .me = x, .line = line });
  }
  @set_color_config(0, 0, line, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, line, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @export_name("main", fn() void);
}
"""
HEAD = """param memcpy_params;
param me: u16;
param line: color;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const out_queue = @get_output_queue(2);
const in_queue = @get_input_queue(2);
const done = @get_local_task_id(10);
var a = @zeros([8]f32);
var got = @zeros([8]f32);
var sent = [8]f32{ 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0 };
const from = @get_dsd(fabin_dsd, .{ .fabric_color = line, .extent = 8, .input_queue = in_queue });
const to = @get_dsd(fabout_dsd, .{ .fabric_color = line, .extent = 8, .output_queue = out_queue });
const whole = @get_dsd(mem1d_dsd, .{ .tensor_access = |k|{8} -> got[k] });
const source = @get_dsd(mem1d_dsd, .{ .tensor_access = |k|{8} -> sent[k] });
fn bump(i: i16, more: f32) void {
  a[i] += more;
}
task finish() void {
  sys.unblock_cmd_stream();
}
fn main() void {
  if (me == 0) {
    @fmovs(to, source, .{ .async = true, .activate = done });
  } else {
    @fmovs(whole, from, .{ .async = true, .activate = done });
  }
"""
TAIL = """}
comptime {
  @bind_local_task(finish, done);
  if (@is_arch("wse3")) {
    @initialize_queue(out_queue, .{ .color = line });
    @initialize_queue(in_queue, .{ .color = line });
  }
  @export_symbol(main);
}
"""


def line_of(text: str) -> int:
    """Number of the line of the program's head that begins with a text."""
    lines = HEAD.splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip().startswith(text))


@dataclass
class Written:
    """A random program, and what it writes to `a`, in the order of its code.

    Attributes:
        body: statements of `main`.
        changes: of each word: line of who changed it, and what it was and is.
    """

    body: list[str] = field(default_factory=list)
    changes: list[list[tuple[int, float, float]]] = field(
        default_factory=lambda: [[] for _ in range(NUM_WORDS)]
    )

    def __post_init__(self) -> None:
        self._a = [0.0] * NUM_WORDS

    @property
    def code(self) -> str:
        return HEAD + "".join(f"{line}\n" for line in self.body) + TAIL

    def add(self, dice: random.Random) -> None:
        """Add a statement."""
        i, j, more = dice.randrange(NUM_WORDS), dice.randrange(NUM_WORDS), dice.randrange(3)
        num = dice.randint(1, NUM_WORDS - i)
        here = len(HEAD.splitlines()) + len(self.body) + 1
        match dice.randrange(5):
            case 0:
                self.body.append(f"  a[{i}] = {more}.0;")
                self._set(here, i, float(more))
            case 1:
                self.body.append(f"  a[{i}] = a[{j}] + {more}.0;")
                self._set(here, i, self._a[j] + more)
            case 2:
                self.body.append(f"  bump({i}, {more}.0);")
                self._set(line_of("a[i] += more"), i, self._a[i] + more)
            case 3:
                part = f"@get_dsd(mem1d_dsd, .{{ .tensor_access = |k|{{{num}}} -> a[k + {i}] }})"
                self.body.append(f"  @fadds({part}, {part}, {more}.0);")
                for k in range(i, i + num):
                    self._set(here, k, self._a[k] + more)
            case _:
                self.body.append(f"  for (@range(i16, {num})) |k| {{ a[k + {i}] = {more}.0; }}")
                for k in range(i, i + num):
                    self._set(here, k, float(more))

    def _set(self, line: int, place: int, value: float) -> None:
        if value != self._a[place]:
            self.changes[place].append((line, self._a[place], value))
        self._a[place] = value


def written(seed: int, num: int = 12) -> Written:
    """A random program of a number of statements."""
    dice, made = random.Random(seed), Written()
    for _ in range(num):
        made.add(dice)
    return made


def ran(program: Written, folder: Path, arch: Arch) -> Program:
    """Compile it, and keep the journal of a run in a folder."""
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(program.code, encoding="utf-8")
    compiled = wafer.compile(folder / "layout.csl", arch=arch).program
    options = RuntimeOptions(log_folder=None, journal=folder / "run.journal")
    runtime = Runtime(compiled, options)
    runtime.load()
    runtime.run()
    runtime.launch("main")
    runtime.stop()
    return compiled


def debugger_of(program: Written, folder: Path, arch: Arch) -> Debugger:
    """A debugger of a run of it."""
    return opened(ran(program, folder, arch), folder, spacing=16)


def opened(compiled: Program, folder: Path, spacing: int) -> Debugger:
    """A debugger of the run that a folder keeps, whose first snapshot comes as many cycles on."""
    return Debugger(compiled, journals.read(folder / "run.journal"), spacing=spacing)
