"""Scans, scatters, transposes and exchanges of the library: several in a row, without a pause."""

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
EXCHANGE = """
param exchange_params: comptime_struct;
param block_words: u16;
const exchange = @import_module("<kernels/exchange/pe>", .{ .exchange_params = exchange_params,
  .block_words = block_words, .output_queue_ids = [2]u16{ 2, 3 },
  .input_queue_ids = if (@is_arch("wse2")) [2]u16{ 1, 2 } else [2]u16{ 2, 3 } });
const all: u16 = block_words * exchange_params.size;
var given = @zeros([3, all]u32);
var found = @zeros([3, all]u32);
fn main() void {
  for (@range(u16, 3)) |n| {
    for (@range(u16, all)) |i| {
      given[n, i] = 10000 * @as(u32, exchange_params.position) + @as(u32, 1000 * n + i);
    }
    exchange.run(@ptrcast([*]u32, &given[n, 0]), @ptrcast([*]u32, &found[n, 0]));
  }
  finish();
}
"""
EXCHANGE_LINE = """
const line = @import_module("<kernels/exchange/layout>", .{ .size = %s, .is_row = %s,
  .colors = [4]color{ @get_color(0), @get_color(1), @get_color(2), @get_color(3) } });
"""


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


@pytest.mark.parametrize(
    ("arch", "size", "words", "is_row"),
    [
        case(Arch.WSE2, 3, 1, False, by_default=True),
        *(case(Arch.WSE2, n, 3, True, by_default=False) for n in (1, 4, 9)),
        *(case(Arch.WSE3, n, 2, n % 2 == 0, by_default=False) for n in range(1, 10)),
    ],
)
def test_exchanges_follow_one_another(arch: Arch, size: int, words: int, is_row: bool) -> None:
    declarations = EXCHANGE_LINE % (size, str(is_row).lower())
    axis = "x" if is_row else "y"
    params = {"exchange_params": f"line.get_params(x, y, {axis})", "block_words": str(words)}
    shape = (size, 1) if is_row else (1, size)
    finished = rig.run(EXCHANGE, arch, rig.Layout(shape, declarations, params))
    sender, word = np.divmod(np.arange(size * words), words)
    for position, (x, y) in enumerate(np.ndindex(shape)):
        first = 10000 * sender + position * words + word
        want = [list(first + 1000 * n) for n in range(3)]
        assert finished.read("found", x, y).reshape(3, -1).tolist() == want
