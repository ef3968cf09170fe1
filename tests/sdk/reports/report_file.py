"""Programs that cannot end, or do what they hardly mean, each with the report that says so.

A file is the code of all PEs. Lines that begin with `//!` come first: `width N`, `arch wse2`, `host
CALL` for what the host does in place of launching `main`, `overruns error`, `check`, `check wrap`,
and lines of the layout block. The report stands as a comment at the end, behind `// report:`;
cycles are left out. What every program needs stands in `_TAIL`, so that lines of the report are
lines of the file.
"""

import re
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from openwafer.diagnostics import Diagnostic, OpenwaferError, render
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.host import Check, Region, Runtime, RuntimeOptions
from openwafer.sdk.host.pe_code import EngineKind
from openwafer.sdk.program.program import Program

FOLDER = Path(__file__).parent / "programs"
_CYCLE = re.compile(r"\bcycle \d+")
_HEADING = "// report:\n"
_TAIL = """
param memcpy_params: comptime_struct;
param x: i16;
param red: color;
param blue: color;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
fn finish() void { sys_mod.unblock_cmd_stream(); }
comptime { @export_symbol(main); }
"""
_LAYOUT = """
const red: color = @get_color(1);
const blue: color = @get_color(2);
const memcpy = @import_module("<memcpy/get_params>", .{{
  .width = {width}, .height = 1, .MEMCPYH2D_1 = @get_color(3), .MEMCPYD2H_1 = @get_color(4) }});
layout {{
  @set_rectangle({width}, 1);
  for (@range(i16, {width})) |x|
    @set_tile_code(x, 0, "{name}", .{{
      .memcpy_params = memcpy.get_params(x), .x = x, .red = red, .blue = blue }});
  {lines}
  @export_name("main", fn()void);
}}
"""
_CORNER = Region(0, 0, 1, 1, 4)
_FOUR_WORDS = np.arange(4, dtype=np.uint32).reshape(_CORNER.shape)


@dataclass(frozen=True)
class ReportFile:
    """One program and its report."""

    path: Path
    program: str
    options: tuple[str, ...]
    expected: str

    @property
    def is_checked(self) -> bool:
        """Whether the program runs with checks."""
        return "check" in self.options

    def reported(self, engine: EngineKind = EngineKind.NATIVE) -> str:
        """What the host gets to read, as comment lines."""
        try:
            text = "\n\n".join(map(render, self._run(engine)))
        except OpenwaferError as error:
            text = str(error)
        text = _CYCLE.sub("cycle N", text)
        return "".join(f"// {line}".rstrip() + "\n" for line in text.splitlines())

    def rewrite(self) -> None:
        """Replace the report by what is reported now."""
        self.path.write_text(self.program + _HEADING + self.reported(), encoding="utf-8")

    def option(self, name: str, default: str) -> str:
        """What stands behind an option's name."""
        found = [line.removeprefix(name) for line in self.options if line.startswith(name)]
        return found[0].strip() if found else default

    def compiled(self) -> Program:
        """The program with its layout; raises OpenwaferError where it is wrong."""
        layout = _LAYOUT.format(
            width=self.option("width", "2"),
            name=self.path.name,
            lines="\n  ".join(line for line in self.options if line.startswith("@")),
        )
        arch = Arch(self.option("arch", "wse3"))
        # The report names files as they are seen from the working folder.
        with TemporaryDirectory() as folder, chdir(folder):
            Path(self.path.name).write_text(self.program + _TAIL, encoding="utf-8")
            Path("layout.csl").write_text(layout, encoding="utf-8")
            return build_program(Path("layout.csl"), CompileOptions(arch=arch, is_memcpy=True))

    def _run(self, engine: EngineKind) -> tuple[Diagnostic, ...]:
        stops = self.option("overruns", "warning") == "error"
        check = Check.WARNING if self.is_checked else Check.OFF
        check = Check.WRAP if "check wrap" in self.options else check
        options = RuntimeOptions(
            engine=engine, log_folder=None, stops_at_overrun=stops, check=check
        )
        runtime = Runtime(self.compiled(), options)
        runtime.load()
        runtime.run()
        match self.option("host", "launch"):
            case "receive":
                runtime.receive(lambda _: None, 4, _CORNER)
            case "send and launch":
                runtime.send(3, _FOUR_WORDS, _CORNER)
                runtime.launch("main")
            case "send and receive":
                runtime.send(3, _FOUR_WORDS, _CORNER)
                runtime.receive(lambda _: None, 4, _CORNER)
            case "launch once":
                runtime.launch("main")
            case _:
                runtime.launch("main")
                runtime.launch("main")
        runtime.stop()
        return runtime.findings()


def read(path: Path) -> ReportFile:
    """Read one file; a ValueError where it has no heading."""
    program, heading, expected = path.read_text(encoding="utf-8").partition(_HEADING)
    if not heading:
        raise ValueError(f"{path.name} has no line '// report:'")
    options = [line[3:].strip() for line in program.splitlines() if line.startswith("//!")]
    return ReportFile(path, program, tuple(options), expected)
