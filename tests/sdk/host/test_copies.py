"""Copies reach a variable wherever the image of each PE has it."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.host import DataType, Region, Runtime, RuntimeOptions

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 4, .height = 3 });
layout {
  @set_rectangle(4, 3);
  for (@range(i16, 4)) |x| {
    for (@range(i16, 3)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .pad = x * 3 + 1 });
    }
  }
  @export_name("values", [*]u32, true);
}
"""
PE = """
param memcpy_params: comptime_struct;
param pad: i16;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
export var before = @zeros([pad]u16);
var values = @zeros([5]u32);
var pointer: [*]u32 = &values;
comptime { @export_symbol(pointer, "values"); }
"""


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    (tmp_path / "layout.csl").write_text(LAYOUT)
    (tmp_path / "pe.csl").write_text(PE)
    program = build_program(tmp_path / "layout.csl", CompileOptions(is_memcpy=True))
    assert len(program.images) == 4
    runtime = Runtime(program, RuntimeOptions(log_folder=None))
    runtime.load()
    runtime.run()
    return runtime


def read(runtime: Runtime, region: Region, kind: DataType = DataType.BITS_32) -> list[object]:
    found: list[np.ndarray[tuple[int, ...], np.dtype[np.uint32]]] = []
    runtime.copy_from_device(found.append, runtime.get_id("values"), region, kind)
    return list(found[0].tolist())


def test_a_region_of_different_images_keeps_what_was_written(runtime: Runtime) -> None:
    values = np.arange(4 * 3 * 5, dtype=np.uint32).reshape(3, 4, 5) + 70000
    runtime.copy_to_device(runtime.get_id("values"), values, Region(0, 0, 4, 3, 5))
    assert read(runtime, Region(0, 0, 4, 3, 5)) == values.tolist()
    assert read(runtime, Region(1, 1, 3, 2, 4)) == values[1:, 1:, :4].tolist()


def test_every_other_pe_of_a_region_takes_part(runtime: Runtime) -> None:
    values = np.arange(1, 5, dtype=np.uint32).reshape(2, 2, 1)
    region = Region(0, 0, 4, 3, 1, step_x=3, step_y=2)
    runtime.copy_to_device(runtime.get_id("values"), values, region)
    expected = [[[1], [0], [0], [2]], [[0]] * 4, [[3], [0], [0], [4]]]
    assert read(runtime, Region(0, 0, 4, 3, 1)) == expected


def test_halves_are_read_one_by_one(runtime: Runtime) -> None:
    values = np.full((3, 4, 2), 0x20001, np.uint32)
    runtime.copy_to_device(runtime.get_id("values"), values, Region(0, 0, 4, 3, 2))
    assert read(runtime, Region(3, 2, 1, 1, 3), DataType.BITS_16) == [[[1, 2, 1]]]


def test_a_copy_over_the_end_of_a_variable_is_a_warning(runtime: Runtime) -> None:
    read(runtime, Region(0, 0, 4, 3, 5))
    assert runtime.overruns() == ()
    read(runtime, Region(1, 0, 1, 1, 6))
    (found,) = runtime.overruns()
    assert found.message == (
        "a copy of 'values' takes 6 elements of 32 bits on PE (1, 0), where 'values' holds 5"
    )


def test_what_leaves_the_memory_names_the_first_such_pe(runtime: Runtime) -> None:
    with pytest.raises(OpenwaferError, match=r"values on PE \(1, 0\) at word \d+ end behind the"):
        read(runtime, Region(1, 0, 3, 3, 12288))
