"""PEs whose params differ in what only run time needs share an image."""

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.library.rig import BOTH, Layout, compile_source, run

SIZE = (4, 3)
PARAMS = {"id": "@as(i16, x) * 10 + @as(i16, y)", "is_east": "x == 3"}
HEAD = "param id: i16; param is_east: bool;"
SUM = f"""{HEAD}
export var out: i32 = 7;
fn main() void {{
  const twice = @as(i32, id) * 2 + 1000000;
  out += twice;
  if (is_east) {{ out = 0 - out; }}
  finish();
}}
"""
COUNTS = f"""{HEAD}
export var out: i32 = 0;
fn main() void {{ for (@range(i16, 0, id, 1)) |k| {{ out += @as(i32, k); }} finish(); }}
"""
SIZES = f"{HEAD} export var out = @zeros([id / 10 + 1]i16); fn main() void {{ finish(); }}"


@pytest.mark.parametrize("arch", BOTH)
def test_each_pe_computes_with_its_own_params(arch: Arch) -> None:
    device = run(SUM, arch, Layout(SIZE, params=PARAMS))
    found = [[int(device.read("out", x, y)) for x in range(4)] for y in range(3)]
    sums = [[1000007 + 2 * (10 * x + y) for x in range(4)] for y in range(3)]
    assert found == [[-s if x == 3 else s for x, s in enumerate(row)] for row in sums]


def test_a_param_that_decides_what_is_compiled_parts_the_images() -> None:
    program = compile_source(SUM, layout=Layout(SIZE, params=PARAMS))
    assert program.image_of.tolist() == [[0, 0, 0, 1]] * 3
    assert program.parameters.shape == (3, 4, 1)


def test_a_loop_runs_as_often_as_its_pe_says() -> None:
    device = run(COUNTS, layout=Layout(SIZE, params=PARAMS))
    assert int(device.read("out", 2, 1)) == sum(range(21))


def test_memory_of_different_size_is_another_image() -> None:
    program = compile_source(SIZES, layout=Layout(SIZE, params=PARAMS))
    assert program.image_of.tolist() == [[0, 1, 2, 3]] * 3
    assert [image.symbols[-1].shape for image in program.images] == [(1,), (2,), (3,), (4,)]
