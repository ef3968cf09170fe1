"""Scans, scatters and transposes of the library: several in a row, with no pause between them."""

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.library import rig
from tests.tables import case

SCAN = """
param scan_params;
const scan = @import_module("<kernels/scan/pe>", .{ .scan_params = scan_params,
  .input_queue_id = 2, .output_queue_id = 2 });
var found = @zeros([4]f32);
fn main() void {
  for (@range(u16, 4)) |n| {
    found[n] = scan.run(@as(f32, 10 * n + scan_params.position + 1));
  }
  finish();
}
"""
TURNS = """
const next_id = @get_local_task_id(15);
var number: u16 = 0;
fn main() void { @activate(next_id); }
task next() void {
  if (number == 3) { finish(); return; }
  number += 1;
  begin(number - 1);
}
comptime { @bind_local_task(next, next_id); }
"""
SCATTER = (
    """
param scatter_params;
const scatter = @import_module("<kernels/scatter/pe>", .{ .scatter_params = scatter_params,
  .length = 2, .callback = next_id, .input_queue_id = 2, .output_queue_id = 2 });
var values = @zeros([3, 2 * scatter_params.size]f32);
fn begin(n: u16) void {
  if (scatter_params.is_first) {
    for (@range(u16, 2 * scatter_params.size)) |i| { values[n, i] = @as(f32, 100 * n + i); }
  }
  scatter.run(@ptrcast([*]f32, &values[n, 0]));
}
"""
    + TURNS
)
TRANSPOSE = (
    """
param transpose_params;
const layout = @import_module("<layout>");
var tile = @zeros([6]f32);
var turned = @zeros([6]f32);
var kept = @zeros([3, 6]f32);
const transpose = @import_module("<kernels/transpose/pe>", .{
  .transpose_params = transpose_params, .tile_rows = 3, .tile_columns = 2, .tile = &tile,
  .transposed = &turned, .callback = next_id,
  .task_ids = [2]local_task_id{ @get_local_task_id(16), @get_local_task_id(17) },
  .input_queue_id = 2, .output_queue_id = 3 });
fn begin(n: u16) void {
  for (@range(u16, 6)) |i| {
    if (n > 0) { kept[n - 1, i] = turned[i]; }
    tile[i] = @as(f32, 1000 * n + 100 * layout.get_y_coord() + 10 * layout.get_x_coord() + i);
  }
  transpose.run();
}
"""
    + TURNS
)


@pytest.mark.parametrize(
    ("arch", "size"),
    [
        case(Arch.WSE2, 5, by_default=True),
        *(case(Arch.WSE3, n, by_default=False) for n in (1, 2, 6)),
    ],
)
def test_scans_follow_one_another(arch: Arch, size: int) -> None:
    declarations = f"""
const line = @import_module("<kernels/scan/layout>", .{{
  .scan_color = @get_color(2), .size = {size} }});
"""
    params = {"scan_params": "line.get_params(x, y, x, EAST)"}
    finished = rig.run(SCAN, arch, rig.Layout((size, 1), declarations, params))
    for x in range(size):
        want = [10 * n * x + x * (x + 1) / 2 for n in range(4)]
        assert finished.read("found", x).tolist() == want


@pytest.mark.parametrize(
    ("arch", "size"),
    [
        case(Arch.WSE3, 4, by_default=True),
        *(case(Arch.WSE2, n, by_default=False) for n in (1, 2, 5)),
    ],
)
def test_scatters_follow_one_another(arch: Arch, size: int) -> None:
    declarations = f"""
const line = @import_module("<kernels/scatter/layout>", .{{
  .scatter_color = @get_color(2), .size = {size}, .num_wavelets = 2 }});
"""
    params = {"scatter_params": "line.get_params(x, y, x, EAST)"}
    finished = rig.run(SCATTER, arch, rig.Layout((size, 1), declarations, params))
    for x in range(size):
        found = finished.read("values", x).reshape(3, -1)[:, :2]
        assert found.tolist() == [[100 * n + 2 * x, 100 * n + 2 * x + 1] for n in range(3)]


@pytest.mark.parametrize(
    ("arch", "size"),
    [case(Arch.WSE2, 3, by_default=True), *(case(Arch.WSE3, n, by_default=False) for n in (2, 4))],
)
def test_transposes_follow_one_another(arch: Arch, size: int) -> None:
    declarations = f"""
const square = @import_module("<kernels/transpose/layout>", .{{
  .colors = [2]color{{ @get_color(2), @get_color(3) }}, .columns = {size}, .rows = {size},
  .num_wavelets = 6 }});
"""
    params = {"transpose_params": "square.get_params(x, y)"}
    finished = rig.run(TRANSPOSE, arch, rig.Layout((size, size), declarations, params))
    by_rows = np.arange(6).reshape(2, 3).T.ravel()
    for x, y in np.ndindex(size, size):
        want = [list(1000 * n + 100 * x + 10 * y + by_rows) for n in range(2)]
        assert finished.read("kept", x, y).reshape(3, 6)[:2].tolist() == want
