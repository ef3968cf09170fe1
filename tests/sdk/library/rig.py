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
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.program.program import Program

BOTH: Final = (Arch.WSE2, Arch.WSE3)

_MEMORY_TYPE: Final = {"u8": "u2", "i8": "u2", "bool": "u2", "f16": "f2", "f32": "f4"}

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

    runtime: Runtime

    def read(self, name: str, x: int = 0, y: int = 0) -> NDArray[Any]:
        """Values of a variable of PE (x, y), in its shape."""
        symbol = self.runtime.symbols.symbol(name, x, y)
        kind = _MEMORY_TYPE.get(symbol.element_type, symbol.element_type.replace("i", "<i"))
        if symbol.element_type in ("u16", "u32", "u64", "i16", "i32", "i64"):
            kind = f"{symbol.element_type[0]}{int(symbol.element_type[1:]) // 8}"
        raw = self.runtime.read_symbol(x, y, name)
        if symbol.element_type in ("u8", "i8", "bool"):
            return raw.view(np.int8 if symbol.element_type == "i8" else np.uint8)
        return raw.view(np.dtype(kind)).reshape(symbol.shape)

    def lines(self) -> list[str]:
        """Lines that PEs printed, as `x.y: text`."""
        return [f"{p.x}.{p.y}: {p.text}" for p in self.runtime.prints()]


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
    runtime = Runtime(
        compile_source(source, arch, layout, inlined=inlined), RuntimeOptions(log_folder=None)
    )
    runtime.load()
    runtime.run()
    runtime.launch("main")
    runtime.stop()
    return Finished(runtime)
