"""<time>, <timer> and <layout>: where and when a PE is."""

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.library import rig

TIMES = """
const time = @import_module("<time>");
const timer = @import_module("<timer>", .{ .timerCount = 2 });
export var stamps = @zeros([5, 3]u16);
export var elapsed = @zeros([2, 3]u16);
var stamp = @zeros([3]u16);
var span: timer.timerType = @zeros([3]u16);
var sum: f32 = 0.0;

fn keep(number: u16) void {
  time.get_timestamp(&stamp);
  for (@range(u16, 3)) |i| { stamps[number, i] = stamp[i]; }
}
fn work(times: u16) void {
  for (@range(u16, times)) |i| { sum += @as(f32, i); }
}
fn main() void {
  keep(0);
  time.enable_tsc();
  timer.start(0);
  timer.start(1);
  work(100);
  timer.stop(0);
  work(1000);
  timer.stop(1);
  keep(1);
  time.disable_tsc();
  keep(2);
  work(100);
  keep(3);
  time.reset_tsc_counter();
  keep(4);
  for (@range(u16, 2)) |t| {
    timer.elapsed(@as(i16, t), &span);
    for (@range(u16, 3)) |i| { elapsed[t, i] = span[i]; }
  }
  finish();
}
"""


@pytest.fixture(scope="module", params=rig.BOTH)
def times(request: pytest.FixtureRequest) -> rig.Device:
    return rig.run(TIMES, request.param)


def cycles(device: rig.Device, name: str) -> list[int]:
    words = device.read(name).astype(np.int64)
    return [int(value) for value in words[:, 0] | words[:, 1] << 16 | words[:, 2] << 32]


def test_the_counter_stands_still_before_it_is_enabled(times: rig.Device) -> None:
    assert cycles(times, "stamps")[0] == 0


def test_the_counter_counts_cycles_of_work(times: rig.Device) -> None:
    # Each of the 1100 turns adds, converts and jumps: three cycles at least.
    assert cycles(times, "stamps")[1] > 3300


def test_the_counter_keeps_its_value_while_it_is_disabled(times: rig.Device) -> None:
    stamps = cycles(times, "stamps")
    assert stamps[2] == stamps[3]


def test_a_reset_makes_the_counter_zero(times: rig.Device) -> None:
    assert cycles(times, "stamps")[4] == 0


def test_timers_run_side_by_side(times: rig.Device) -> None:
    short, long = cycles(times, "elapsed")
    assert 8 * short < long < 14 * short


PLACE = """
const layout = @import_module("<layout>");
export var place = @zeros([2]u16);
fn main() void {
  place[0] = layout.get_x_coord();
  place[1] = layout.get_y_coord();
  finish();
}
"""


def test_a_pe_knows_its_place_in_the_rectangle() -> None:
    device = rig.run(PLACE, Arch.WSE3, rig.Layout(size=(3, 2)))
    for y in range(2):
        for x in range(3):
            assert device.read("place", x, y).tolist() == [x, y]


BORROW = """
const timer = @import_module("<timer>", .{ .timerCount = 1 });
export var span = @zeros([3]u16);
fn main() void {
  timer.starts[0, 0] = 0xffff;
  timer.starts[0, 1] = 0xffff;
  timer.stops[0, 0] = 3;
  timer.stops[0, 2] = 1;
  timer.elapsed(0, &span);
  finish();
}
"""


def test_an_elapsed_time_borrows_across_words() -> None:
    assert rig.run(BORROW).read("span").tolist() == [4, 0, 0]


REGISTERS = """
const tc = @import_module("<tile_config>");
const base = @as(u16, tc.addresses.TIMESTAMP_COUNTER);
const control = @as(u16, tc.addresses.PERF_COUNTER_CONTROL);
export var low = @zeros([3]u16);
export var state = @zeros([2]u16);
fn read() u16 { return @bitcast(*u16, base).*; }
fn main() void {
  @bitcast(*u16, control).* = 7;
  state[0] = @bitcast(*u16, control).*;
  for (@range(u16, tc.target.tsc_size_words)) |i| {
    @bitcast(*u16, base + tc.word_size * i).* = 0;
  }
  low[0] = read();
  low[1] = read();
  @bitcast(*u16, control).* = 0;
  state[1] = @bitcast(*u16, control).*;
  const stopped = read();
  low[2] = read() - stopped;
  finish();
}
"""


@pytest.mark.parametrize("arch", rig.BOTH)
def test_code_may_read_and_reset_the_counter_through_its_registers(arch: Arch) -> None:
    device = rig.run(REGISTERS, arch)
    first, second, after = (int(value) for value in device.read("low"))
    assert 0 < first < second < 1000
    assert after == 0
    assert device.read("state").tolist() == [7, 0]
