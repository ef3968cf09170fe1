"""<collectives_2d>: each operation for each root on lines of PEs, one after the other."""

from typing import Any

import pytest
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import Arch
from tests.sdk.library import rig
from tests.tables import case

COUNT = 3
DECLARATIONS = 'const c2d = @import_module("<collectives_2d/params>");'
PARAMS = {
    "c2d_params": """c2d.get_params(x, y, .{
      .x_colors = .{ @get_color(0), @get_color(1) },
      .x_entrypoints = .{ @get_local_task_id(8), @get_local_task_id(9) },
      .y_colors = .{ @get_color(4), @get_color(5) },
      .y_entrypoints = .{ @get_local_task_id(10), @get_local_task_id(11) } })"""
}


# Broadcast, scatter, gather and sum for root 0, then for root 1 ...: no pause in between.
SOURCE = """
param dim_params: comptime_struct;
param size: u16;
const count: u16 = 3;
const total: u16 = size * count;
const mpi = @import_module("<collectives_2d/pe>", .{ .dim_params = dim_params });
const next_id = @get_local_task_id(15);
var broadcasts = @zeros([size, count]u32);
var scatters = @zeros([size, count]u32);
var gathers = @zeros([size, total]u32);
var sums = @zeros([size, count]f32);
var all = @zeros([total]u32);
var own = @zeros([count]u32);
var addends = @zeros([count]f32);
var root: u16 = 0;
var step: u16 = 0;
var num_done: u16 = 0;

fn main() void {
  mpi.init();
  for (@range(u16, total)) |i| { all[i] = @as(u32, 1000 * mpi.pe_id + i); }
  for (@range(u16, count)) |i| {
    own[i] = @as(u32, 100 * mpi.pe_id + i);
    addends[i] = @as(f32, mpi.pe_id + 10 * i);
  }
  for (@range(u16, size)) |r| {
    for (@range(u16, count)) |i| { broadcasts[r, i] = @as(u32, 1000 * mpi.pe_id + i); }
  }
  @activate(next_id);
}

task next() void {
  if (root == size) {
    num_done += 1;
    finish();
    return;
  }
  const r = root;
  const now = step;
  step = (step + 1) % 4;
  if (step == 0) { root += 1; }
  if (now == 0) {
    mpi.broadcast(r, @ptrcast([*]u32, &broadcasts[r, 0]), count, next_id);
  } else if (now == 1) {
    mpi.scatter(r, @ptrcast([*]u32, &all), @ptrcast([*]u32, &scatters[r, 0]), count, next_id);
  } else if (now == 2) {
    mpi.gather(r, @ptrcast([*]u32, &own), @ptrcast([*]u32, &gathers[r, 0]), count, next_id);
  } else {
    mpi.reduce_fadds(r, @ptrcast([*]f32, &addends), @ptrcast([*]f32, &sums[r, 0]), count,
                     next_id);
  }
}
comptime { @bind_local_task(next, next_id); }
"""


Line = tuple[rig.Device, str, int]


def run_line(axis: str, size: int, arch: Arch) -> rig.Device:
    shape = (size, 1) if axis == "x" else (1, size)
    params = {"dim_params": f"{PARAMS['c2d_params']}.{axis}", "size": str(size)}
    return rig.run(SOURCE, arch, rig.Layout(shape, DECLARATIONS, params=params))


@pytest.fixture(
    scope="module",
    params=[
        case(("x", 1, Arch.WSE3), by_default=True, id="x1-wse3"),
        case(("x", 2, Arch.WSE2), by_default=False, id="x2-wse2"),
        case(("y", 3, Arch.WSE3), by_default=False, id="y3-wse3"),
        case(("y", 4, Arch.WSE2), by_default=True, id="y4-wse2"),
        case(("x", 5, Arch.WSE3), by_default=True, id="x5-wse3"),
    ],
)
def line(request: pytest.FixtureRequest) -> Line:
    axis, size, arch = request.param
    return run_line(axis, size, arch), axis, size


def read(line: Line, name: str, number: int) -> NDArray[Any]:
    finished, axis, _ = line
    return finished.read(name, *((number, 0) if axis == "x" else (0, number)))


def test_a_broadcast_puts_the_roots_values_everywhere(line: Line) -> None:
    want = [[1000 * root + i for i in range(COUNT)] for root in range(line[2])]
    for pe in range(line[2]):
        assert read(line, "broadcasts", pe).tolist() == want


def test_a_scatter_gives_each_pe_its_block(line: Line) -> None:
    for pe in range(line[2]):
        block = range(pe * COUNT, (pe + 1) * COUNT)
        want = [[1000 * root + i for i in block] for root in range(line[2])]
        assert read(line, "scatters", pe).tolist() == want


def test_a_gather_brings_all_blocks_to_the_root_alone(line: Line) -> None:
    blocks = [100 * pe + i for pe in range(line[2]) for i in range(COUNT)]
    for pe in range(line[2]):
        want = [blocks if root == pe else [0] * len(blocks) for root in range(line[2])]
        assert read(line, "gathers", pe).tolist() == want


def test_a_sum_comes_to_the_root_alone(line: Line) -> None:
    size = line[2]
    total = [sum(pe + 10 * i for pe in range(size)) for i in range(COUNT)]
    for pe in range(size):
        want = [total if root == pe else [0] * COUNT for root in range(size)]
        assert read(line, "sums", pe).tolist() == want


def test_the_callback_comes_once_for_each_operation(line: Line) -> None:
    assert [int(read(line, "num_done", pe)) for pe in range(line[2])] == [1] * line[2]


BOTH_AXES = """
param c2d_params: comptime_struct;
const mpi_x = @import_module("<collectives_2d/pe>", .{ .dim_params = c2d_params.x,
  .queues = [2]u16{ 2, 4 }, .dest_dsr_ids = [1]u16{ 1 }, .src0_dsr_ids = [1]u16{ 1 },
  .src1_dsr_ids = [1]u16{ 1 } });
const mpi_y = @import_module("<collectives_2d/pe>", .{ .dim_params = c2d_params.y,
  .queues = [2]u16{ 3, 5 }, .dest_dsr_ids = [1]u16{ 2 }, .src0_dsr_ids = [1]u16{ 2 },
  .src1_dsr_ids = [1]u16{ 2 } });
const x_id = @get_local_task_id(15);
const y_id = @get_local_task_id(16);
var row = @zeros([8]u32);
var addends = @zeros([8]f32);
var sums = @zeros([8]f32);
var num_left: u16 = 2;
fn main() void {
  mpi_x.init();
  mpi_y.init();
  for (@range(u16, 8)) |i| {
    row[i] = @as(u32, 100 * mpi_x.pe_id + 10 * mpi_y.pe_id + i);
    addends[i] = @as(f32, 100 * mpi_x.pe_id + 10 * mpi_y.pe_id + i);
  }
  mpi_x.broadcast(1, @ptrcast([*]u32, &row), 8, x_id);
  mpi_y.reduce_fadds(0, @ptrcast([*]f32, &addends), @ptrcast([*]f32, &sums), 8, y_id);
}
fn end_one() void {
  num_left -= 1;
  if (num_left == 0) { finish(); }
}
task x_done() void { end_one(); }
task y_done() void { end_one(); }
comptime {
  @bind_local_task(x_done, x_id);
  @bind_local_task(y_done, y_id);
}
"""


@pytest.mark.parametrize("arch", [case(a, by_default=a is Arch.WSE3) for a in rig.BOTH])
def test_rows_and_columns_work_at_the_same_time(arch: Arch) -> None:
    layout = rig.Layout(size=(3, 2), declarations=DECLARATIONS, params=PARAMS)
    finished = rig.run(BOTH_AXES, arch, layout)
    for x in range(3):
        sums = [sum(100 * x + 10 * y + i for y in range(2)) for i in range(8)]
        assert finished.read("sums", x, 0).tolist() == sums
        for y in range(2):
            row = [100 + 10 * y + i for i in range(8)]
            assert finished.read("row", x, y).tolist() == row
