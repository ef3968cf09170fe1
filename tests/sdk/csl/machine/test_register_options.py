"""Options of operations on registers: those of the load count."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.csl.machine.one_pe import EXPORT_MAIN, MAIN, Pe, warnings_of

REGISTERS = """
const in_dsd = @get_dsd(fabin_dsd, .{
  .fabric_color = @get_color(3), .input_queue = @get_input_queue(2), .extent = 4 });
var data: [4]f32;
const data_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> data[i] });
const from = @get_dsr(dsr_src1, 1);
const to = @get_dsr(dsr_dest, 1);
task first() void {}
task second() void {}
comptime {
  @bind_local_task(first, @get_local_task_id(9));
  @bind_local_task(second, @get_local_task_id(10));
  @initialize_queue(@get_input_queue(2), .{ .color = @get_color(3) });
}
fn main() void {
  @load_to_dsr(to, data_dsd);
  @load_to_dsr(from, in_dsd, LOAD);
  @fmovs(to, from, OWN);
}
"""
ACTIVATES = ".{ .async = true, .activate = second }"


def source(load: str, own: str) -> str:
    return REGISTERS.replace("LOAD", load).replace("OWN", own)


def test_the_options_of_an_operation_on_registers_are_not_its_own(tmp_path: Path) -> None:
    code = Pe(tmp_path, source(".{ .async = true, .activate = first }", ACTIVATES)).image.code
    assert 'load_dsr["2", "1", async, activate]' in code
    assert "vector[fmovs, fabric]" in code


def test_priority_stays_with_the_operation(tmp_path: Path) -> None:
    own = ".{ .async = true, .priority = .{ .high = true } }"
    assert (
        "vector[fmovs, fabric, priority]"
        in Pe(tmp_path, source(ACTIVATES, own), Arch.WSE2).image.code
    )


@pytest.mark.parametrize(
    ("load", "own", "expected"),
    [
        (".{}", ".{ .async = true }", ".async of an operation on registers has no effect"),
        (".{ .async = true }", ACTIVATES, ".activate = second of an operation on registers"),
        (".{ .async = true, .activate = first }", ACTIVATES, "their loads say first"),
    ],
)
def test_an_option_that_no_load_gives_is_a_warning(
    tmp_path: Path, load: str, own: str, expected: str
) -> None:
    (found,) = warnings_of(tmp_path, source(load, own) + EXPORT_MAIN, Arch.WSE2, MAIN)
    assert expected in found
    assert "give @load_to_dsr the option" in found


@pytest.mark.parametrize("own", [ACTIVATES, ".{ .async = true }", ".{}"])
def test_options_that_the_load_has_too_are_no_matter(tmp_path: Path, own: str) -> None:
    text = source(ACTIVATES, own) + EXPORT_MAIN
    assert warnings_of(tmp_path, text, Arch.WSE2, MAIN) == ()
