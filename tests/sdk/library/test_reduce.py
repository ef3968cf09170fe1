"""<kernels/reduce>: sums one after the other, with no pause between them."""

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.library import rig
from tests.tables import case

SOURCE = """
param reduce_params;
const num_sums: u16 = 4;
const length: u16 = 3;
const next_id = @get_local_task_id(15);
const sum = @import_module("<kernels/reduce/pe>", .{ .reduce_params = reduce_params,
  .length = length, .callback = next_id, .task_id = @get_local_task_id(16) });
const layout = @import_module("<layout>");
var values = @zeros([num_sums, length]f32);
var number: u16 = 0;
fn main() void {
  for (@range(u16, num_sums)) |n| {
    for (@range(u16, length)) |i| {
      values[n, i] = @as(f32, 1000 * n + 100 * i + layout.get_x_coord());
    }
  }
  @activate(next_id);
}
task next() void {
  if (number == num_sums) { finish(); return; }
  const n = number;
  number += 1;
  sum.run(@ptrcast([*]f32, &values[n, 0]));
}
comptime { @bind_local_task(next, next_id); }
"""


def layout_of(size: int, shape: int, group: int) -> rig.Layout:
    """A row whose sum goes west."""
    declarations = f"""
const sums = @import_module("<kernels/reduce/layout>", .{{
  .colors = [2]color{{ @get_color(2), @get_color(3) }}, .size = {size}, .shape = {shape},
  .group = {group} }});
"""
    return rig.Layout((size, 1), declarations, {"reduce_params": "sums.get_params(x, y, x, WEST)"})


@pytest.mark.parametrize(
    ("arch", "shape", "group", "size"),
    [
        case(Arch.WSE3, 0, 1, 5, by_default=True),
        case(Arch.WSE2, 1, 1, 4, by_default=True),
        case(Arch.WSE3, 2, 1, 16, by_default=False),
        case(Arch.WSE2, 2, 1, 13, by_default=False),
        case(Arch.WSE2, 3, 3, 8, by_default=True),
        case(Arch.WSE3, 3, 4, 4, by_default=False),
    ],
)
def test_sums_follow_one_another_without_a_pause(
    arch: Arch, shape: int, group: int, size: int
) -> None:
    finished = rig.run(SOURCE, arch, layout_of(size, shape, group))
    numbers = 1000 * np.arange(4)[:, None] + 100 * np.arange(3)
    want = size * numbers + sum(range(size))
    assert finished.read("values").tolist() == want.tolist()
