"""Registers, FIFOs and tasks that take turns, on the simulated fabric."""

from typing import Final

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from tests.sdk.library.rig import BOTH, Device, compile_source, load, run

_BUFFERS: Final = """
var x = [5]i16{ 10, 20, 30, 40, 50 };
var grid = [3, 4]i16{ 0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23 };
var out = @zeros([12]i16);
const out_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> out[i] });
const six = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{6} -> out[i] });
const target = @get_dsr(dsr_dest, 4);
const source = @get_dsr(dsr_src1, 5);
const extended = @get_xdsr(3);
"""


def out(body: str, declarations: str = "", arch: Arch = Arch.WSE3) -> list[int]:
    """What the body leaves in `out`."""
    program = f"{_BUFFERS}{declarations}\nfn main() void {{ {body} finish(); }}"
    found: list[int] = run(program, arch).read("out").tolist()
    return found


@pytest.mark.parametrize("arch", BOTH)
def test_a_circular_buffer_begins_again_at_its_end(arch: Arch) -> None:
    ring = "const ring = @get_dsd(circbuf_dsd, .{ .base_address = &x, .extent = 12 });"
    body = "@load_to_dsr_xdsr(source, extended, ring); @mov16(out_dsd, source);"
    assert out(body, ring, arch) == np.resize([10, 20, 30, 40, 50], 12).tolist()


@pytest.mark.parametrize("arch", BOTH)
def test_a_circular_buffer_loaded_before_the_start_wraps_where_it_is_told(arch: Arch) -> None:
    ring = """
    const ring = @get_dsd(circbuf_dsd, .{ .base_address = &x[1], .extent = 12, .wraparound = 3 });
    comptime { @load_to_dsr_xdsr(source, extended, ring); }"""
    assert out("@mov16(out_dsd, source);", ring, arch) == [20, 30, 40] * 4


def test_a_circular_buffer_goes_on_where_an_operation_ended() -> None:
    ring = "const ring = @get_dsd(circbuf_dsd, .{ .base_address = &x, .extent = 6 });"
    body = """
    @load_to_dsr_xdsr(source, extended, ring, .{ .save_address = true });
    @mov16(six, source);
    @mov16(@increment_dsd_offset(six, 6, i16), source);"""
    assert out(body, ring) == np.resize([10, 20, 30, 40, 50], 12).tolist()


def test_a_circular_buffer_takes_results() -> None:
    ring = """
    const ring = @get_dsd(circbuf_dsd, .{ .base_address = &out, .extent = 5, .wraparound = 2 });
    const x_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> x[i] });"""
    body = "@load_to_dsr_xdsr(target, extended, ring); @mov16(target, x_dsd);"
    assert out(body, ring)[:3] == [50, 40, 0]


@pytest.mark.parametrize("arch", BOTH)
def test_a_dsd_of_two_dims_lies_in_three_kinds_of_registers(arch: Arch) -> None:
    columns = """
    const columns = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{4, 3} -> grid[j, i] });
    const stride = @get_sr(1);"""
    body = "@load_to_dsr_xdsr_sr(source, extended, .{ stride }, columns); @mov16(out_dsd, source);"
    assert out(body, columns, arch) == [0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23]


@pytest.mark.parametrize("arch", BOTH)
def test_a_register_goes_on_at_another_address(arch: Arch) -> None:
    body = """
    @load_to_dsr(source, six);
    @set_dsr_base_addr(source, &grid[1, 0]);
    @mov16(@increment_dsd_offset(six, 6, i16), source);"""
    assert out(body, "", arch)[6:] == [10, 11, 12, 13, 20, 21]


_FIFO: Final = """
var buffer = @zeros([4]i16);
const fifo = @allocate_fifo(buffer, .{ OPTIONS });
const x_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> x[i] });
"""


def test_registers_may_stand_for_a_fifo() -> None:
    options = ".dest = @get_dsr(dsr_fifo_dest, 6), .src = @get_dsr(dsr_fifo_src1, source)"
    body = """
    const is_whole = @mov16(@get_dsr(dsr_fifo_dest, 6), x_dsd);
    out[11] = if (is_whole) 1 else 0;
    @mov16(six, @get_dsr(dsr_fifo_src1, source));"""
    assert out(body, _FIFO.replace("OPTIONS", options)) == [10, 20, 30, 40, *[0] * 8]


def test_a_fifo_that_nothing_uses_takes_no_memory() -> None:
    declarations = "var large: [30000]u32; const fifo = @allocate_fifo(large);"
    assert out("out[0] = 3;", declarations)[0] == 3


@pytest.mark.parametrize(("action", "is_whole"), [("test_or_suspend", 0), ("terminate", 1)])
def test_an_operation_ends_at_a_full_fifo(action: str, is_whole: int) -> None:
    declarations = _FIFO.replace("OPTIONS", f".full_action = .{{ .{action} = true }}")
    body = "out[0] = if (@mov16(fifo, x_dsd)) 1 else 0; out[1] = 7;"
    assert out(body, declarations)[:2] == [is_whole, 7]


def test_an_operation_waits_at_an_empty_fifo_that_suspends() -> None:
    declarations = _FIFO.replace("OPTIONS", ".empty_action = .{ .suspend = true }")
    device = load(compile_source(_whole("@mov16(six, fifo);", declarations)))
    with pytest.raises(OpenwaferError, match=r"@mov16 has 6 elements left, waits for FIFO 0"):
        device.start("main")


def test_a_fifo_may_have_its_end_as_a_fault() -> None:
    declarations = _FIFO.replace("OPTIONS", ".full_action = .{ .fault = true }")
    device = load(compile_source(_whole("@mov16(fifo, x_dsd);", declarations)))
    with pytest.raises(OpenwaferError, match="PE \\(0, 0\\) pushed to FIFO 0 when it was full"):
        device.start("main")


def _whole(body: str, declarations: str) -> str:
    return f"{_BUFFERS}{declarations}\nfn main() void {{ {body} finish(); }}"


_TURNS: Final = """
const c = @get_color(4);
const in = @get_input_queue(2);
const to = @get_output_queue(3);
const send_dsd = @get_dsd(fabout_dsd, .{ .extent = 9, .output_queue = to });
var order = @zeros([16]u16);
var seen: u16 = 0;
fn note(value: u16) void { order[seen] = value; seen += 1; }
task plain(data: u32) void { note(1); }
task other() void { note(2); }
fn main() void { @mov32(send_dsd, 0, .{ .async = true }); finish(); }
comptime {
  @set_local_color_config(c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } } });
  @initialize_queue(in, .{ .color = c });
  @initialize_queue(to, .{ .color = c });
  @set_control_task_table();
  @bind_rotating_tasks(plain, other, @get_data_task_id(in), .{ OPTIONS });
}
"""


def order(device: Device) -> list[int]:
    found: list[int] = device.read("order").tolist()
    return found[: int(device.read("seen").item())]


@pytest.mark.parametrize(
    ("options", "starts"),
    [(".limit = 3", "111211121"), (".init = 2, .limit = 3", "121112111"), (".limit = 0", "2" * 9)],
)
def test_rotating_tasks_take_turns(options: str, starts: str) -> None:
    device = run(_TURNS.replace("OPTIONS", options))
    assert "".join(map(str, order(device))) == starts


_OTHER_TURNS: Final = """
const c5 = @get_color(5);
const in5 = @get_input_queue(4);
const to5 = @get_output_queue(5);
const send5_dsd = @get_dsd(fabout_dsd, .{ .extent = 6, .output_queue = to5 });
task three(data: u32) void { note(3); }
task four() void { note(4); }
comptime {
  @set_local_color_config(c5, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } } });
  @initialize_queue(in5, .{ .color = c5 });
  @initialize_queue(to5, .{ .color = c5 });
  @bind_rotating_tasks(three, four, @get_data_task_id(in5), .{ .limit = 2 });
}
"""


def test_two_pairs_of_rotating_tasks_count_apart() -> None:
    both = "@mov32(send5_dsd, 0, .{ .async = true }); finish();"
    device = run(_TURNS.replace("OPTIONS", ".limit = 3").replace("finish();", both) + _OTHER_TURNS)
    starts = "".join(map(str, order(device)))
    assert starts.translate({ord(c): None for c in "34"}) == "111211121"
    assert starts.translate({ord(c): None for c in "12"}) == "334334"


_TABLES: Final = """
const control = @import_module("<control>");
const first = @get_input_queue(2);
const second = @get_input_queue(3);
const outs = [2]output_queue{ @get_output_queue(2), @get_output_queue(3) };
const to_first = @get_dsd(fabout_dsd, .{ .extent = 1, .output_queue = outs[0], .control = true });
const to_second = @get_dsd(fabout_dsd, .{ .extent = 1, .output_queue = outs[1], .control = true });
var sum: u16 = 0;
task one() void { sum += 1; }
task hundred() void { sum += 100; }
fn main() void {
  const payload = control.encode_control_task_payload(@get_control_task_id(1));
  @mov32(to_first, payload);
  @mov32(to_second, payload);
  finish();
}
comptime {
  for (@range(u16, 2)) |i| {
    const c = @get_color(4 + i);
    @set_local_color_config(c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } } });
    @initialize_queue(outs[i], .{ .color = c });
  }
  @initialize_queue(first, .{ .color = @get_color(4) });
  @initialize_queue(second, .{ .color = @get_color(5), .ctrl_table_id = 1 });
  @set_control_task_table(.{ .stride = 4 });
  @bind_control_task(one, @get_control_task_id(1));
  @bind_control_task(hundred, @get_control_task_id(5));
  @unblock(first);
  @unblock(second);
}
"""


def test_control_wavelets_start_tasks_of_their_queues_table() -> None:
    assert run(_TABLES).read("sum").item() == 101


def test_every_generator_id_is_the_one_generator() -> None:
    body = "@set_active_prng(3); out[0] = @bitcast(i16, @random16());"
    assert out(body)[0] == np.uint16(0xBEEF).view(np.int16)


def test_registers_are_told_apart_and_have_numbers() -> None:
    body = """
    @comptime_assert(source == @get_dsr(dsr_src1, 5) and source != @get_dsr(dsr_src1, 6));
    out[0] = @as(i16, @get_int(extended));
    out[1] = @as(i16, @get_int(@get_sr(2)));"""
    assert out(body)[:2] == [3, 2]
