"""<kernels/tally>: the work of all PEs is counted, and told once."""

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.library import rig
from tests.tables import checkerboard

SIZES = [(1, 1), (1, 4), (4, 1), (3, 5)]


def layout(size: tuple[int, int], phase2: int) -> rig.Layout:
    width, height = size
    declarations = f"""
const tally = @import_module("<kernels/tally/layout>", .{{
  .kernel_width = {width}, .kernel_height = {height}, .phase2_tally = {phase2},
  .colors = [3]color{{ @get_color(12), @get_color(13), @get_color(14) }},
  .output_color = @get_color(8) }});
"""
    return rig.Layout(size, declarations, params={"tally_params": "tally.get_params(x, y)"})


# Each PE bumps the tally by its number in two steps, before and after it signals completion.
SOURCE = """
param tally_params: comptime_struct;
const layout = @import_module("<layout>");
const told_id = @get_local_task_id(15);
const later_id = @get_local_task_id(16);
const tally = @import_module("<kernels/tally/pe>", IMPORT);
export var told: u16 = 0;
export var total: u32 = 0;
fn number() u32 { return @as(u32, layout.get_x_coord() + 10 * layout.get_y_coord()); }
fn main() void {
  tally.bump_tally(number());
  tally.signal_completion();
  @activate(later_id);
  finish();
}
task later() void { tally.bump_tally(number()); }
task on_told() void { told += 1; total = tally.local_tally; }
comptime {
  @bind_local_task(on_told, told_id);
  @bind_local_task(later, later_id);
}
"""
OPTIONS = """.input_queues = [2]u16{ 6, 7 }, .output_queues = [2]u16{ 4, 5 }, .callback = told_id"""
ONE_STRUCT = f".{{ .tally_params = tally_params, {OPTIONS} }}"
BY_FIELD = f"@concat_structs(tally_params, .{{ {OPTIONS} }})"


def expected(size: tuple[int, int]) -> int:
    width, height = size
    return 2 * sum(x + 10 * y for x in range(width) for y in range(height))


@pytest.mark.parametrize(
    ("size", "arch"), checkerboard({str(size): size for size in SIZES}, rig.BOTH)
)
def test_the_corner_is_told_once_when_the_tally_is_reached(
    size: tuple[int, int], arch: Arch
) -> None:
    finished = rig.run(SOURCE.replace("IMPORT", ONE_STRUCT), arch, layout(size, expected(size)))
    corner = size[0] - 1
    assert int(finished.read("told", corner)) == 1
    assert int(finished.read("total", corner)) == expected(size)


def test_nobody_else_is_told() -> None:
    finished = rig.run(SOURCE.replace("IMPORT", ONE_STRUCT), Arch.WSE2, layout((3, 2), 0))
    told = [int(finished.read("told", x, y)) for y in range(2) for x in range(3)]
    assert told == [0, 0, 1, 0, 0, 0]


def test_a_tally_that_is_never_reached_is_never_told() -> None:
    finished = rig.run(
        SOURCE.replace("IMPORT", BY_FIELD), Arch.WSE3, layout((2, 2), 1 + expected((2, 2)))
    )
    assert int(finished.read("told", 1)) == 0


def test_without_a_second_phase_the_end_of_the_first_is_told() -> None:
    source = SOURCE.replace("IMPORT", BY_FIELD).replace("tally.bump_tally(number());", "")
    finished = rig.run(source, Arch.WSE3, layout((2, 3), 0))
    assert int(finished.read("told", 1)) == 1
    assert int(finished.read("total", 1)) == 0
