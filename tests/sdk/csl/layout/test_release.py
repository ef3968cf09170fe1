"""Which release of the vendor's SDK a program is for: what a wavelet carries depends on it."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.program.descriptor import DsdFlag

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{
  .width = 1, .height = 1, .MEMCPYD2H_1 = STREAM });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
}
"""
PE = """
param memcpy_paramsTYPE;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
export var d = @get_dsd(fabin_dsd, .{
  .extent = 4, .fabric_color = @get_color(3), .input_queue = @get_input_queue(2) MODE });
"""
NUMBER, COLOR = "5", "@get_color(5)"


def is_simd(
    folder: Path, stream: str = NUMBER, kind: str = "", mode: str = "", release: str = ""
) -> bool:
    """Whether two 16-bit elements share a wavelet of the descriptor `d`."""
    (folder / "layout.csl").write_text(LAYOUT.replace("STREAM", stream))
    (folder / "pe.csl").write_text(PE.replace("TYPE", kind).replace("MODE", mode))
    options = CompileOptions(arch=Arch.WSE3, is_memcpy=True, release=release)
    (image,) = build_program(folder / "layout.csl", options).images
    symbol = next(symbol for symbol in image.symbols if symbol.name == "d")
    return bool(image.data[2 * symbol.address] & DsdFlag.SIMD)


@pytest.mark.parametrize(
    ("stream", "kind", "expected"),
    [
        pytest.param(NUMBER, "", True, id="streams are numbers since 2.10"),
        pytest.param(COLOR, "", False, id="streams were colors"),
        pytest.param(NUMBER, ": comptime_struct", False, id="2.10 has no comptime_struct"),
    ],
)
def test_the_release_is_taken_from_what_only_one_has(
    tmp_path: Path, stream: str, kind: str, expected: bool
) -> None:
    assert is_simd(tmp_path, stream, kind) is expected


@pytest.mark.parametrize(("release", "expected"), [("1.4", False), ("2.10", True)])
def test_the_release_can_be_said(tmp_path: Path, release: str, expected: bool) -> None:
    assert is_simd(tmp_path, release=release) is expected


def test_a_descriptor_that_says_its_mode_has_it_in_every_release(tmp_path: Path) -> None:
    off = ", .simd_mode = .{ .simd_off = true }"
    on = ", .simd_mode = .{ .simd_32 = true }"
    assert not is_simd(tmp_path, mode=off, release="2.10")
    assert is_simd(tmp_path, mode=on, release="1.4")
