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
from openwafer.sdk.host.engine import Engine, EngineKind, build_engine
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
      {statements}
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
        statements: for each PE (x, y), before its code is set.
        params: further params of the PE program: name to expression.
    """

    size: tuple[int, int] = (1, 1)
    declarations: str = ""
    statements: str = ""
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """A program whose `main` has run on every PE."""

    simulator: Simulator
    symbols: HostSymbols
    engine: Engine

    def read(self, name: str, x: int = 0, y: int = 0) -> NDArray[Any]:
        """Values of a variable of PE (x, y), in its shape."""
        symbol = self.symbols.symbol(name, x, y)
        words = self.simulator.read(x, y, symbol.address, symbol.num_words)
        return words.view(_DTYPES.get(symbol.element_type, np.uint16)).reshape(symbol.shape)

    def prints(self, x: int = 0, y: int = 0) -> list[str]:
        """What PE (x, y) printed, a text for each time that its buffer was emptied."""
        return [p.text for p in self.simulator.prints() if (p.x, p.y) == (x, y)]


def compile_source(
    source: str, arch: Arch = Arch.WSE3, layout: Layout = Layout(), *, inlined: int = 1000
) -> Program:
    """Compile a PE program; it defines `main`, which calls `finish` at its end."""
    width, height = layout.size
    with TemporaryDirectory() as folder:
        (Path(folder) / "pe.csl").write_text(_PE_HEAD + source + _PE_TAIL, encoding="utf-8")
        text = _LAYOUT.format(
            width=width,
            height=height,
            declarations=layout.declarations,
            statements=layout.statements,
            params="".join(f", .{name} = {value}" for name, value in layout.params.items()),
        )
        (Path(folder) / "layout.csl").write_text(text, encoding="utf-8")
        options = CompileOptions(arch=arch, is_memcpy=True, max_inlined_iterations=inlined)
        return build_program(Path(folder) / "layout.csl", options)


def run(
    source: str, arch: Arch = Arch.WSE3, layout: Layout = Layout(), *, inlined: int = 1000
) -> Finished:
    """Compile a PE program and run its `main` once on every PE."""
    program = compile_source(source, arch, layout, inlined=inlined)
    engine = build_engine(program, EngineKind.NATIVE)
    simulator = Simulator(program, engine.run_address, engine.element_address)
    symbols = HostSymbols(program)
    simulator.start_command(symbols.entries(symbols.named("main")))
    simulator.run_until_command_done()
    simulator.run_until_idle(SETTLE_CYCLES)
    return Finished(simulator, symbols, engine)
