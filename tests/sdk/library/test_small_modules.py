"""The modules without a machine's part: directions, control, complex, malloc, memcpy_switches."""

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.program.routing import Direction
from tests.sdk.library import rig

DIRECTIONS = ("NORTH", "EAST", "SOUTH", "WEST", "RAMP")


def turned(function: str) -> str:
    results = (f"dirs.dirToTxBits(dirs.{function}({name}))" for name in DIRECTIONS)
    return f"export var {function} = [5]u16{{ {', '.join(results)} }};"


TURNS = f"""
const dirs = @import_module("<directions>");
{turned("rotate_clockwise")}
{turned("rotate_counterclockwise")}
{turned("flip_vertical")}
{turned("flip_horizontal")}
{turned("flip")}
export var bits = [4]u16{{ dirs.dirToTxBits(EAST), dirs.dirToRxBits(EAST),
                           dirs.TX_RAMP | dirs.RX_NORTH, dirs.RX_RAMP }};
fn main() void {{ finish(); }}
"""
N, E, S, W, R = (Direction.NORTH, Direction.EAST, Direction.SOUTH, Direction.WEST, Direction.RAMP)


@pytest.fixture(scope="module")
def turns() -> rig.Device:
    return rig.run(TURNS)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("rotate_clockwise", [E, S, W, N, R]),
        ("rotate_counterclockwise", [W, N, E, S, R]),
        ("flip_vertical", [S, E, N, W, R]),
        ("flip_horizontal", [N, W, S, E, R]),
        ("flip", [S, W, N, E, R]),
    ],
)
def test_a_direction_turns_and_the_ramp_stays(
    turns: rig.Device, name: str, want: list[Direction]
) -> None:
    assert turns.read(name).tolist() == [1 << direction for direction in want]


def test_routes_have_a_bit_by_direction(turns: rig.Device) -> None:
    assert turns.read("bits").tolist() == [1 << E, 1 << 5 + E, 1 << R | 1 << 5 + N, 1 << 5 + R]


CONTROL = """
const control = @import_module("<control>");
const switches = @import_module("<memcpy/memcpy_switches>");
const op = control.opcode;
const id = @get_control_task_id(40);
export var single = [4]u32{
  control.encode_control_task_payload(id),
  control.encode_single_payload(op.SWITCH_ADV, true, {}, 0),
  control.encode_single_payload(op.NOP, false, id, 0x1234),
  control.encode_single_payload(op.TEARDOWN, false, {}, 0),
};
export var several = [3]u32{
  control.encode_payload(2, [2]op{ op.SWITCH_ADV, op.SWITCH_RST }, [2]bool{ true, false },
                         true, {}),
  control.encode_payload(8, [8]op{ op.TEARDOWN, op.NOP, op.SWITCH_ADV, op.SWITCH_RST, op.TEARDOWN,
                                   op.SWITCH_ADV, op.SWITCH_RST, op.TEARDOWN },
                         [8]bool{ false, true, false, true, true, false, false, true }, false, id),
  control.encode_payload(1, [1]op{ op.SWITCH_RST }, [1]bool{ true }, false, {}),
};
export var known = [2]u32{ switches.ctrl(switches.teardown_cmd_1()),
                           switches.ctrl(switches.switch_cmd_11()) };
export var most: u16 = control.MAX_CMDS;
export var run_time = @zeros([1]u32);
fn main() void {
  var data: u16 = 0x55;
  run_time[0] = control.encode_single_payload(op.SWITCH_RST, true, {}, data);
  finish();
}
"""


def payload(commands: list[tuple[int, int]], rest: int, task: int, data: int = 0) -> int:
    """The bits in their order: opcode and ignore bit of each command from bit 22 on, wrapping at
    bit 32 to bit 0 - save that command 2's bit is the first of the second half."""
    places = [(22, 24), (25, 27), (28, 0), (1, 3), (4, 6), (7, 9), (10, 12), (13, 15)]
    padded = commands + [(0, rest)] * (8 - len(commands))
    word = task << 16 | data
    for (code, ignored), (code_at, ignored_at) in zip(padded, places, strict=True):
        word |= code << code_at | ignored << ignored_at
    return word


@pytest.fixture(scope="module")
def control() -> rig.Device:
    return rig.run(CONTROL)


def test_one_command_and_a_task_share_a_payload_with_data(control: rig.Device) -> None:
    want = [40 << 16, 1 << 22 | 1 << 24 | 31 << 16, 40 << 16 | 0x1234, 3 << 22 | 31 << 16]
    assert control.read("single").tolist() == want


def test_eight_commands_fill_the_payload(control: rig.Device) -> None:
    eight = [(3, 0), (0, 1), (1, 0), (2, 1), (3, 1), (1, 0), (2, 0), (3, 1)]
    want = [
        payload([(1, 1), (2, 0)], 1, 31),
        payload(eight, 0, 40),
        payload([(2, 1)], 0, 31),
    ]
    assert control.read("several").tolist() == want


def test_the_commands_of_public_programs_have_their_known_bits(control: rig.Device) -> None:
    assert control.read("known").tolist() == [0x09DF9249, 0x0B5F9249]


def test_a_payload_holds_eight_commands(control: rig.Device) -> None:
    assert control.read("most").tolist() == 8


def test_a_payload_is_made_of_run_time_data(control: rig.Device) -> None:
    assert control.read("run_time").tolist() == [2 << 22 | 1 << 24 | 31 << 16 | 0x55]


def test_nine_commands_are_refused() -> None:
    nine = "[9]control.opcode{" + ", ".join(["control.opcode.NOP"] * 9) + "}"
    text = f"""const control = @import_module("<control>");
    export var x = [1]u32{{ control.encode_payload(9, {nine}, @zeros([9]bool), true, {{}}) }};
    fn main() void {{ finish(); }}"""
    with pytest.raises(OpenwaferError, match="at most 8 commands"):
        rig.compile_source(text)


COMPLEX = """
const c = @import_module("<complex>");
export var x32 = [2]f16{ 1.5, -2.0 };
export var x64 = [2]f32{ 3.0, 0.25 };
export var r32 = @zeros([6]f16);
export var r64 = @zeros([6]f32);
fn main() void {
  const a = c.get_complex_32(x32[0], x32[1]);
  const b = c.get_complex(@as(f16, 0.5), @as(f16, 4.0));
  const sum = c.add_complex(a, b);
  const difference = c.subtract_complex_32(a, b);
  const product = c.multiply_complex(a, b);
  r32[0] = sum.real; r32[1] = sum.imag;
  r32[2] = difference.real; r32[3] = difference.imag;
  r32[4] = product.real; r32[5] = product.imag;
  const d = c.get_complex(x64[0], x64[1]);
  const e = c.get_complex_64(-1.0, 2.0);
  const sum64 = c.add_complex_64(d, e);
  const difference64 = c.subtract_complex(d, e);
  const product64 = c.multiply_complex_64(d, e);
  r64[0] = sum64.real; r64[1] = sum64.imag;
  r64[2] = difference64.real; r64[3] = difference64.imag;
  r64[4] = product64.real; r64[5] = product64.imag;
  finish();
}
"""


@pytest.mark.parametrize(
    ("name", "x", "y"), [("r32", 1.5 - 2j, 0.5 + 4j), ("r64", 3 + 0.25j, -1 + 2j)]
)
def test_complex_numbers_add_subtract_and_multiply(name: str, x: complex, y: complex) -> None:
    results = [x + y, x - y, x * y]
    want = [part for value in results for part in (value.real, value.imag)]
    np.testing.assert_array_equal(rig.run(COMPLEX).read(name), want)


MALLOC = """
const mem = @import_module("<malloc>", .{ .buffer_num_words = 16 });
export var space = @zeros([6]u16);
export var sums = @zeros([3]f32);
fn main() void {
  const a = mem.malloc_f32(3);
  const b = mem.malloc(u16, 4);
  space[0] = @as(u16, mem.has_enough_words(6));
  space[1] = @as(u16, mem.has_enough_words(7));
  space[2] = @as(u16, mem.has_enough_double_words(3));
  space[3] = @as(u16, mem.has_enough_space(f32, 4));
  for (@range(u16, 3)) |i| { a[i] = @as(f32, i) + 0.5; }
  for (@range(u16, 4)) |i| { b[i] = 100 * i; }
  for (@range(u16, 3)) |i| { sums[i] = a[i] + @as(f32, b[i + 1]); }
  mem.free();
  space[4] = @as(u16, mem.has_enough_words(16));
  const again = mem.malloc_f32(1);
  space[5] = @as(u16, again[0] == 0.5);
  finish();
}
"""


@pytest.fixture(scope="module")
def malloc() -> rig.Device:
    return rig.run(MALLOC)


def test_allocations_do_not_overlap(malloc: rig.Device) -> None:
    np.testing.assert_array_equal(malloc.read("sums"), [100.5, 201.5, 302.5])


def test_the_arena_tells_what_is_left_and_begins_again(malloc: rig.Device) -> None:
    assert malloc.read("space").tolist() == [1, 0, 1, 0, 1, 1]


def test_an_allocation_beyond_the_arena_stops_the_program_that_asked_for_it() -> None:
    text = """const mem = @import_module("<malloc>", .{ .buffer_num_words = 4,
                                                        .asserts_enabled = true });
    export var x = @zeros([1]u16);
    fn main() void { const a = mem.malloc_u32(3); x[0] = @as(u16, a[0]); finish(); }"""
    with pytest.raises(OpenwaferError, match="assertion"):
        rig.run(text)


def test_a_module_is_left_out_by_a_condition() -> None:
    text = """const cache = @import_module(if (true) "<empty>" else "<math>");
    export var x = [1]u16{ 7 };
    fn main() void { finish(); }"""
    assert rig.run(text).read("x").tolist() == [7]
