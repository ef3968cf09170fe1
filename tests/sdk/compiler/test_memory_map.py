"""The memory map says what lies where, and what is left."""

from pathlib import Path

from openwafer.sdk.compiler.command_line import parse_command
from openwafer.sdk.compiler.memory_map import memory_map
from openwafer.sdk.compiler.pipeline import compile_program, render_stage

LAYOUT = """
layout {
  @set_rectangle(2, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .size = 20 });
  @set_tile_code(1, 0, "pe.csl", .{ .size = 20 });
  @export_name("main", fn()void);
}
"""
PE = """
param size: u16;
var first = @zeros([size]f32);
var bytes = @zeros([5]u8);
fn main() void { first[0] = 1.0; bytes[1] = 2; }
comptime { @export_symbol(main); }
"""


STRUCTS = """
param size: u16;
const Inner = struct { half: f16, on: bool };
const Bits = packed struct { low: u4, high: u12 };
const Outer = struct { x: f32, inner: Inner, bits: Bits };
var one: Outer;
var many: [2]Inner;
fn main() void { one.x = 1.0; many[1].half = 2.0; }
comptime { @export_symbol(main); }
"""


def written(folder: Path, code: str = PE) -> Path:
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(code)
    return folder / "layout.csl"


def test_each_variable_has_its_address_size_and_bank(tmp_path: Path) -> None:
    lines = render_stage(parse_command([str(written(tmp_path)), "--emit", "memory"])).splitlines()
    assert "pe.csl(size=20), 2 PEs" in lines
    assert "   0x0020      80     0  first: [20]f32" in lines
    assert "   0x0070       5     0  bytes: [5]u8" in lines


def test_the_parts_of_the_memory_add_up(tmp_path: Path) -> None:
    command = parse_command([str(written(tmp_path))])
    program = compile_program(command.layout, command.options)
    (image,) = program.images
    left = 49152 - 2 * image.stack_base
    code = f"code about {2 * image.code_words} bytes"
    assert f"  data 118 bytes, {code}, left for the stack {left:,} bytes" in memory_map(program)


def test_a_struct_shows_its_fields_with_the_byte_where_each_begins(tmp_path: Path) -> None:
    command = parse_command([str(written(tmp_path, STRUCTS)), "--emit", "memory"])
    lines = [line.split("  ")[-1].strip() for line in render_stage(command).splitlines()]
    first, many = lines.index("one: Outer"), lines.index("many: [2]Inner")
    assert lines[first + 1 : first + 8] == [
        "+0 one.x: f32",
        "+4 one.inner: Inner",
        "+4 one.inner.half: f16",
        "+6 one.inner.on: bool",
        "+8 one.bits: Bits",
        "+8 bit 0 one.bits.low: u4",
        "+8 bit 4 one.bits.high: u12",
    ]
    assert lines[many + 1 : many + 3] == ["+0 many[].half: f16", "+2 many[].on: bool"]
