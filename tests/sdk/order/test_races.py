"""A task and its own microthreads see each other's memory in the order of cycles."""

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.host.pe_code import EngineKind
from tests.sdk.library import rig

HEAD = """
const color = @get_color(2);
const out_queue = @get_output_queue(2);
const in_queue = @get_input_queue(3);
const to = @get_dsd(fabout_dsd, .{ .fabric_color = color, .extent = 4, .output_queue = out_queue });
const from = @get_dsd(fabin_dsd, .{ .fabric_color = color, .extent = 4, .input_queue = in_queue });
export var source = [4]f32{ 1.0, 2.0, 3.0, 4.0 };
export var arrived = @zeros([4]f32);
export var copied = @zeros([4]f32);
var total = @zeros([16]f32);
const source_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &source, .extent = 4 });
const arrived_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &arrived, .extent = 4 });
const copied_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &copied, .extent = 4 });
const total_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &total, .extent = 16 });
comptime {
  @initialize_queue(out_queue, .{ .color = color });
  @initialize_queue(in_queue, .{ .color = color });
  @set_local_color_config(color, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } } });
}
fn exchange() void {
  @fmovs(arrived_dsd, from, .{ .async = true });
  @fmovs(to, source_dsd, .{ .async = true });
}
"""
ENGINES = pytest.mark.parametrize("kind", list(EngineKind))
GENERATIONS = pytest.mark.parametrize("arch", rig.BOTH)


def after(main: str, arch: Arch, kind: EngineKind) -> rig.Device:
    """A PE that has exchanged four words with itself, behind `main`."""
    source = f"{HEAD}fn main() void {{ exchange(); {main} finish(); }}"
    device = rig.load(rig.compile_source(source, arch), kind)
    device.start("main")
    return device


@ENGINES
@GENERATIONS
def test_a_vector_operation_sees_what_arrived_meanwhile(arch: Arch, kind: EngineKind) -> None:
    work = "for (@range(i16, 20)) |i| { @fmacs(total_dsd, total_dsd, source_dsd, 1.0); }"
    device = after(f"{work} @fmovs(copied_dsd, arrived_dsd);", arch, kind)
    assert device.read("copied").tolist() == [1, 2, 3, 4]


@ENGINES
@GENERATIONS
def test_scalar_code_sees_what_arrived_meanwhile(arch: Arch, kind: EngineKind) -> None:
    work = "for (@range(i16, 100)) |i| { total[0] += 1.0; }"
    copy = "for (@range(u16, 4)) |i| { copied[i] = arrived[i]; }"
    assert after(f"{work} {copy}", arch, kind).read("copied").tolist() == [1, 2, 3, 4]


@ENGINES
@GENERATIONS
def test_what_is_stored_later_is_not_sent(arch: Arch, kind: EngineKind) -> None:
    work = "for (@range(i16, 100)) |i| { total[0] += 1.0; } source[3] = 99.0;"
    assert after(work, arch, kind).read("arrived").tolist() == [1, 2, 3, 4]


@ENGINES
@GENERATIONS
def test_what_is_stored_in_time_is_sent(arch: Arch, kind: EngineKind) -> None:
    assert after("source[3] = 99.0;", arch, kind).read("arrived").tolist() == [1, 2, 3, 99]


@ENGINES
@GENERATIONS
def test_a_loop_may_wait_for_what_arrives(arch: Arch, kind: EngineKind) -> None:
    device = after("while (arrived[3] == 0.0) { copied[0] += 1.0; }", arch, kind)
    assert device.read("arrived").tolist() == [1, 2, 3, 4]
    assert device.read("copied")[0] > 0
