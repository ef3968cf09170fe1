"""Tasks that registers and FIFOs name before the start: of the kinds that run time takes, too."""

from pathlib import Path

import pytest

from tests.sdk.csl.machine.one_pe import refusal

REGISTERS = """
task data(value: u32) void {}
task control() void {}
task unbound() void {}
var buffer: [4]u32;
const in_queue = @get_input_queue(2);
const in = @get_dsd(fabin_dsd, .{ .extent = 4, .input_queue = in_queue });
const from = @get_dsr(dsr_src1, 1);
comptime {
  @initialize_queue(in_queue, .{ .color = @get_color(1) });
  @initialize_queue(@get_input_queue(3), .{ .color = @get_color(3) });
  @bind_data_task(data, @get_data_task_id(@get_input_queue(3)));
  @bind_control_task(control, @get_control_task_id(40));
}
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (".activate = data", "'data' is a data task, only local tasks can be activated"),
        (".activate = unbound", "'unbound' is bound to no task id"),
        (".unblock = control", "'control' is a control task, only data and local tasks"),
        (".on_control = .{ .activate = data }", "'data' is a data task"),
        (".on_control = .{ .unblock = control }", "'control' is a control task"),
    ],
)
def test_a_register_names_a_task_that_can_be_meant(
    tmp_path: Path, options: str, message: str
) -> None:
    load = f"comptime {{ @load_to_dsr(from, in, .{{ .async = true, {options} }}); }}"
    assert message in refusal(tmp_path, REGISTERS + load)


def test_a_fifo_activates_local_tasks_only(tmp_path: Path) -> None:
    fifo = "const fifo = @allocate_fifo(buffer, .{ .activate_pop = control });"
    text = refusal(tmp_path, REGISTERS + fifo + "comptime { const used = fifo; }")
    assert "'control' is a control task, only local tasks can be activated" in text
    assert ".activate_pop = control" in text
