"""Data tasks, and operations that wait for the same wavelets."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.csl.machine.one_pe import EXPORT_MAIN, MAIN, warnings_of

TASKS = """
const queue = @get_input_queue(2);
const blue = @get_color(1);
const in = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = blue, .input_queue = queue });
const from = @get_dsr(dsr_src1, 1);
const to = @get_dsr(dsr_dest, 1);
var a: [4]u32;
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const add_id = if (@is_arch("wse3")) @get_data_task_id(queue) else @get_data_task_id(blue);
task add(value: u32) void { a[0] += value; }
comptime {
  @initialize_queue(queue, .{ .color = blue });
  @bind_data_task(add, add_id);
}
"""
SHARED = "data task 'add' and this operation take wavelets of one queue"
MOVE = "@mov32(a_dsd, in, .{ .async = true });"
MOVE_BY_REGISTERS = "@load_to_dsr(to, a_dsd); @mov32(to, from);"
LOAD = "@load_to_dsr(from, in, .{ .async = true });"


def said(folder: Path, arch: Arch, main: str, start: str = "") -> tuple[str, ...]:
    code = f"fn main() void {{ {main} }} comptime {{ {start} }}"
    return warnings_of(folder, TASKS + code + EXPORT_MAIN, arch, MAIN)


@pytest.mark.parametrize("arch", Arch)
@pytest.mark.parametrize(
    ("main", "start"), [(MOVE, ""), (LOAD + MOVE_BY_REGISTERS, ""), (MOVE_BY_REGISTERS, LOAD)]
)
def test_wavelets_that_a_task_and_an_operation_wait_for_are_a_warning(
    tmp_path: Path, arch: Arch, main: str, start: str
) -> None:
    (found,) = said(tmp_path, arch, main, start)
    assert SHARED in found
    assert "and never blocked" in found


@pytest.mark.parametrize("arch", Arch)
@pytest.mark.parametrize(
    ("main", "start"),
    [
        ("@block(add_id);" + MOVE, ""),
        (MOVE, "@block(add_id);"),
        ("@mov32(a_dsd, in);", ""),
        ("@load_to_dsr(from, in);" + MOVE_BY_REGISTERS, ""),
    ],
)
def test_blocked_tasks_and_operations_that_code_waits_for_are_no_matter(
    tmp_path: Path, arch: Arch, main: str, start: str
) -> None:
    assert said(tmp_path, arch, main, start) == ()
