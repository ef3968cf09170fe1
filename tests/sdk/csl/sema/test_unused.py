"""Mistakes in what nothing uses are warnings; what is right, or right elsewhere, is silent."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from tests.sdk.csl.machine.one_pe import compile_pe, warnings_of

UNUSED = "so the program goes without it"


def said(folder: Path, source: str, exports: str = "") -> str:
    return "\n".join(warnings_of(folder, source, Arch.WSE3, exports))


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("const c = @get_color(30);", "color 30 does not exist on wse3"),
        ("const total = missing + 1;", "use of undeclared identifier 'missing'"),
        ("var small: i16 = 70000;", "value 70000 does not fit in type 'i16'"),
        ("fn f(x: i16) i16 { return x + 1.5; }", "operands of '+' have different types"),
        ("fn f(x: missing) void {}", "use of undeclared identifier 'missing'"),
        ("task t() void { count = 3; }", "use of undeclared identifier 'count'"),
        ("const loop = loop + 1;", "the value of 'loop' depends on itself"),
    ],
)
def test_a_mistake_that_nothing_uses_is_a_warning(
    tmp_path: Path, declaration: str, message: str
) -> None:
    text = said(tmp_path, declaration)
    assert "warning[csl-" in text
    assert message in text
    assert UNUSED in text


@pytest.mark.parametrize(
    "declaration",
    [
        "param size: i16; const twice = 2 * size;",
        "param red = {}; var out = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = red });",
        "fn table(n: i16) i16 { @comptime_assert(n > 3); return n; }",
        "fn name(text: comptime_string) comptime_string { return text; }",
        "fn any(x: anytype) void { x.missing(); }",
        "inline fn inlined(x: i16) void { missing(x); }",
        "extern fn elsewhere(x: i16) i16;",
        "const p = @get_dsd(fabin_dsd, .{ .input_queue = @get_input_queue(3), .extent = 3 });",
    ],
)
def test_what_may_be_right_in_a_use_is_silent(tmp_path: Path, declaration: str) -> None:
    assert said(tmp_path, declaration) == ""


def test_a_name_that_some_pe_uses_is_no_matter_for_the_others(tmp_path: Path) -> None:
    layout = """layout { @set_rectangle(2, 1);
      @set_tile_code(0, 0, "pe.csl", .{ .number = 9 });
      @set_tile_code(1, 0, "pe.csl", .{ .number = 3 }); }"""
    source = """param number: i16;
    const q = @get_input_queue(number);
    comptime { if (number < 8) @initialize_queue(q, .{ .color = @get_color(1) }); }"""
    (tmp_path / "pe.csl").write_text(source)
    (tmp_path / "layout.csl").write_text(layout)
    program = build_program(tmp_path / "layout.csl", CompileOptions(arch=Arch.WSE3))
    assert program.warnings == ()


def test_an_unused_array_takes_no_memory(tmp_path: Path) -> None:
    image = compile_pe(tmp_path, "var large: [20000]u16; const wrong = @get_color(99);")
    assert image.data == b""


def test_mistakes_of_imported_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "part.csl").write_text("const wrong = @get_color(99);")
    assert "part.csl:1:26" in said(tmp_path, 'const part = @import_module("part.csl");')


def test_mistakes_of_the_layout_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "pe.csl").write_text("")
    layout = """param given: i16; const twice = 2 * given; const wrong = @get_color(99);
    layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); }"""
    (tmp_path / "layout.csl").write_text(layout)
    (warning,) = build_program(tmp_path / "layout.csl", CompileOptions(arch=Arch.WSE3)).warnings
    assert "color 99 does not exist" in warning
