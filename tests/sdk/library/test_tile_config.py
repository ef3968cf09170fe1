"""<tile_config>: configuration read and changed by the program itself."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from tests.sdk.library import rig

REGISTERS = """
const tc = @import_module("<tile_config>");
const cc = tc.color_config;
const sc = tc.switch_config;
const io = cc.fabric_io;
const c = @get_color(3);
var moving: color = @get_color(3);
export var routes = @zeros([7]u16);
export var switches = @zeros([6]u16);
export var place = @zeros([2]u16);
export var status = @zeros([5]u16);
export var pending = @zeros([2]u16);
fn main() void {
  const address = cc.get_color_config_addr(moving);
  routes[0] = @get_config(address);
  cc.reset_routes(moving, .{ .tx = EAST, .rx = WEST });
  routes[1] = @get_config(address);
  cc.reset_routes(address, .{ .tx = [2]direction{ RAMP, SOUTH }, .rx = [1]direction{ NORTH } });
  routes[2] = @get_config(address);
  cc.set_io_direction(c, io.TX_NORTH);
  routes[3] = @get_config(address);
  cc.toggle_io_direction(c, io.TX_NORTH);
  cc.toggle_io_direction(c, io.TX_WEST);
  routes[4] = @get_config(address);
  cc.clear_io_direction(address, io.TX_RAMP);
  routes[5] = @get_config(address);
  sc.set_pop_mode(c, sc.pop_mode.ALWAYS_POP);
  sc.set_pop_mode(c, sc.pop_mode.POP_ON_ADVANCE);
  routes[6] = @get_config(address);

  const state = sc.get_switch_config_addr(c, sc.switch_status);
  sc.set_invalid_for_all_switch_positions(c);
  switches[0] = @get_config(state);
  sc.set_rx_switch_pos1(c, WEST);
  sc.set_tx_switch_pos2(c, RAMP);
  switches[1] = @get_config(state);
  sc.set_ring_mode(c, sc.ring_mode.RING_MODE);
  sc.set_current_switch_position(c, 2);
  switches[2] = @get_config(state);
  sc.clear_current_position(c);
  switches[3] = @get_config(state);
  sc.set_switch_pos(sc.switch_pos.POS3, c, NORTH, sc.switch_select.INPUT);
  sc.set_ring_mode(c, sc.ring_mode.NO_RING_MODE);
  switches[4] = @get_config(state);

  place[0] = tc.get_fabric_coord(tc.fabric_coord.X);
  place[1] = tc.get_fabric_coord(tc.fabric_coord.Y);
  const queues = tc.input_queue_status.get();
  status[0] = @as(u16, tc.input_queue_status.all_empty(queues));
  status[1] = @as(u16, tc.input_queue_status.none_full(queues));
  status[2] = @as(u16, tc.input_queue_status.is_empty(queues, @get_input_queue(2)));
  status[3] = @as(u16, tc.input_queue_status.is_full(queues, @get_input_queue(2)));
  status[4] = @as(u16, tc.output_queue_status.all_empty(tc.output_queue_status.get()));
  const torn = tc.teardown.get_pending();
  pending[0] = @as(u16, tc.teardown.is_pending(torn, c));
  finish();
}
comptime {
  @set_local_color_config(c, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
}
"""
WEST, EAST, SOUTH, NORTH, RAMP = (1 << n for n in range(5))


@pytest.fixture(scope="module", params=rig.BOTH)
def registers(request: pytest.FixtureRequest) -> rig.Device:
    return rig.run(REGISTERS, request.param)


def test_routes_change_one_by_one_and_all_together(registers: rig.Device) -> None:
    assert registers.read("routes").tolist() == [
        WEST << 5 | RAMP,
        WEST << 5 | EAST,
        NORTH << 5 | RAMP | SOUTH,
        NORTH << 5 | RAMP | SOUTH | NORTH,
        NORTH << 5 | RAMP | SOUTH | WEST,
        NORTH << 5 | SOUTH | WEST,
        2 << 12 | NORTH << 5 | SOUTH | WEST,
    ]


def test_switch_positions_are_nibbles_of_direction_and_side(registers: rig.Device) -> None:
    assert registers.read("switches").tolist() == [
        0x0555,
        0x0548,
        0x0548 | 1 << 12 | 2 << 13,
        0x0548 | 1 << 12,
        0x0B48,
        0,
    ]


def test_a_pe_knows_its_place_on_the_whole_fabric(registers: rig.Device) -> None:
    assert registers.read("place").tolist() == [4, 1]


def test_queues_of_an_idle_pe_are_empty(registers: rig.Device) -> None:
    assert registers.read("status").tolist() == [1, 1, 1, 0, 1]


def test_no_color_waits_in_teardown_at_the_start(registers: rig.Device) -> None:
    assert registers.read("pending").tolist() == [0, 0]


def test_positions_that_change_both_directions_are_refused_on_wse2() -> None:
    text = """const sc = @import_module("<tile_config>").switch_config;
    fn main() void { sc.set_rxtx_switch_pos1(@get_color(3), WEST, EAST); finish(); }"""
    with pytest.raises(OpenwaferError, match="only WSE-3 has positions that change rx and tx"):
        rig.compile_source(text, Arch.WSE2)


# Two values go east, then a teardown; its handlers turn the color round, and they come back.
REROUTED = """
param is_west: bool;
const tc = @import_module("<tile_config>");
const control = @import_module("<control>");
const c = @get_color(3);
const in_queue = @get_input_queue(2);
const out_queue = @get_output_queue(3);
const in = @get_dsd(fabin_dsd, .{ .extent = 2, .fabric_color = c, .input_queue = in_queue });
const out = @get_dsd(fabout_dsd, .{ .extent = 2, .fabric_color = c, .output_queue = out_queue });
const order = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c, .output_queue = out_queue,
                                      .control = true });
export var values = [2]u32{ 11, 12 };
export var back = @zeros([2]u32);
export var num_torn: u16 = 0;
const teardown = [1]u32{ control.encode_single_payload(control.opcode.TEARDOWN, true, {}, 0) };
const teardown_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> teardown[i] });
const values_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> values[i] });
const back_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> back[i] });
const done_id = @get_local_task_id(12);
fn main() void {
  if (is_west) {
    @mov32(out, values_dsd);
    @mov32(order, teardown_dsd);
  } else {
    @mov32(values_dsd, in, .{ .async = true });
  }
}
fn on_teardown() void {
  num_torn += 1;
  if (is_west) {
    tc.color_config.reset_routes(c, .{ .rx = EAST, .tx = RAMP });
  } else {
    tc.color_config.reset_routes(c, .{ .rx = RAMP, .tx = WEST });
  }
  tc.teardown.exit(c);
  if (is_west) {
    @mov32(back_dsd, in, .{ .async = true, .activate = done_id });
  } else {
    @mov32(out, values_dsd, .{ .async = true, .activate = done_id });
  }
}
task done() void { finish(); }
comptime {
  @bind_local_task(done, done_id);
  @set_teardown_handler(on_teardown, c);
  @initialize_queue(in_queue, .{ .color = c });
  if (@is_arch("wse3")) { @initialize_queue(out_queue, .{ .color = c }); }
  if (is_west) {
    @set_local_color_config(c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  } else {
    @set_local_color_config(c, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  }
}
"""


@pytest.fixture(scope="module", params=rig.BOTH)
def rerouted(request: pytest.FixtureRequest) -> rig.Device:
    layout = rig.Layout(size=(2, 1), params={"is_west": "x == 0"})
    return rig.run(REROUTED, request.param, layout)


def test_a_color_that_left_teardown_carries_data_the_other_way(rerouted: rig.Device) -> None:
    assert rerouted.read("back", 0).tolist() == [11, 12]


def test_a_teardown_reaches_every_router_of_the_route(rerouted: rig.Device) -> None:
    assert [int(rerouted.read("num_torn", x)) for x in range(2)] == [1, 1]


PRIORITIES = """
const tc = @import_module("<tile_config>");
const low_id = @get_local_task_id(8);
const high_id = @get_local_task_id(12);
export var order = @zeros([4]u16);
var count: u16 = 0;
fn note(id: u16) void {
  order[count] = id;
  count += 1;
  if (count == 2) { @activate(again_id); }
  if (count == 4) { finish(); }
}
task low() void { note(8); }
task high() void { note(12); }
fn main() void {
  @activate(low_id);
  @activate(high_id);
}
const again_id = @get_local_task_id(14);
task again() void {
  tc.task_priority.clear_task_priority(high_id);
  tc.task_priority.set_task_priority(low_id);
  @activate(high_id);
  @activate(low_id);
}
comptime {
  @bind_local_task(low, low_id);
  @bind_local_task(high, high_id);
  @bind_local_task(again, again_id);
  tc.task_priority.set_task_priority(high_id);
  tc.main_thread_priority.update_main_thread_priority(tc.main_thread_priority.level.HIGH);
}
"""


@pytest.mark.parametrize("arch", rig.BOTH)
def test_a_task_that_lost_its_priority_comes_behind(arch: Arch) -> None:
    order = rig.run(PRIORITIES, arch).read("order").tolist()
    assert order[2:] == [8, 12]


@pytest.mark.parametrize("arch", rig.BOTH)
def test_tasks_of_high_priority_come_first(arch: Arch) -> None:
    order = rig.run(PRIORITIES, arch).read("order").tolist()
    assert order[:2] == [12, 8]
