"""Compiles small programs on the standard library, runs them, and reads named variables back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host.pe_code import EngineKind, PeCode, build_engine
from openwafer.sdk.host.symbols import HostSymbols
from openwafer.sdk.program.program import Program

BOTH: Final = (Arch.WSE2, Arch.WSE3)

_DTYPES: Final = {
    "f16": np.float16,
    "f32": np.float32,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
}
"""How an element lies in memory; the types that are not here take one word."""

SETTLE_CYCLES: Final = 100_000
MAX_INLINED: Final = 1000
"""Formats are unrolled by character."""

_PE_HEAD: Final = """
param memcpy_params: comptime_struct;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
"""

_PE_TAIL: Final = """
fn finish() void { sys_mod.unblock_cmd_stream(); }
comptime { @export_symbol(main); }
"""

_LAYOUT: Final = """
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {width}, .height = {height} }});
{declarations}
layout {{
  @set_rectangle({width}, {height});
  for (@range(u16, {width})) |x| {{
    for (@range(u16, {height})) |y| {{
      @set_tile_code(x, y, "pe.csl", .{{ .memcpy_params = memcpy.get_params(x){params} }});
    }}
  }}
  @export_name("main", fn()void);
}}
"""


@dataclass(frozen=True)
class Layout:
    """What surrounds the PE program.

    Attributes:
        size: columns and rows.
        declarations: in front of the layout block.
        params: further params of the PE program: name to expression.
    """

    size: tuple[int, int] = (1, 1)
    declarations: str = ""
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """A program on the simulated fabric."""

    simulator: Simulator
    symbols: HostSymbols
    engine: PeCode

    def start(self, function: str, *arguments: int) -> None:
        """Run an exported function on every PE to its end."""
        entries = self.symbols.entries(self.symbols.named(function))
        self.simulator.start_command(entries, arguments)
        self.simulator.run_until_command_done()
        self.simulator.run_until_idle(SETTLE_CYCLES)

    def write(self, name: str, values: NDArray[Any], x: int = 0, y: int = 0) -> None:
        """Set a variable of PE (x, y)."""
        symbol = self.symbols.symbol(name, x, y)
        self.simulator.write(x, y, symbol.address, values.ravel().view(np.uint16))

    def read(self, name: str, x: int = 0, y: int = 0) -> NDArray[Any]:
        """Values of a variable of PE (x, y), in its shape."""
        symbol = self.symbols.symbol(name, x, y)
        words = self.simulator.read(x, y, symbol.address, symbol.num_words)
        return words.view(_DTYPES.get(symbol.element_type, np.uint16)).reshape(symbol.shape)

    def prints(self, x: int = 0, y: int = 0) -> list[str]:
        """What PE (x, y) printed, a text for each time that its buffer was emptied."""
        return [p.text for p in self.simulator.prints() if (p.x, p.y) == (x, y)]


def compile_files(files: Mapping[str, str], options: CompileOptions) -> Program:
    """Compile `layout.csl` of the given files."""
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return build_program(Path(folder) / "layout.csl", options)


def compile_source(source: str, arch: Arch = Arch.WSE3, layout: Layout = Layout()) -> Program:
    """Compile a PE program; it defines `main`, which calls `finish` at its end."""
    width, height = layout.size
    text = _LAYOUT.format(
        width=width,
        height=height,
        declarations=layout.declarations,
        params="".join(f", .{name} = {value}" for name, value in layout.params.items()),
    )
    options = CompileOptions(arch=arch, is_memcpy=True, max_inlined_iterations=MAX_INLINED)
    return compile_files({"pe.csl": _PE_HEAD + source + _PE_TAIL, "layout.csl": text}, options)


def load(program: Program, kind: EngineKind = EngineKind.NATIVE) -> Device:
    """Put a program on a fabric."""
    engine = build_engine(program, kind)
    simulator = Simulator(program, engine.run_address, engine.element_address)
    return Device(simulator, HostSymbols(program), engine)


def run(source: str, arch: Arch = Arch.WSE3, layout: Layout = Layout()) -> Device:
    """Compile a PE program and run its `main` once on every PE."""
    device = load(compile_source(source, arch, layout))
    device.start("main")
    return device
