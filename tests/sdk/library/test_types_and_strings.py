"""The modules about types, strings and halves of integers, and filters that change."""

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from tests.sdk.csl.machine.one_pe import ran, refusal
from tests.sdk.library import rig

PRELUDE: Final = """
const types = @import_module("<types>");
const string = @import_module("<string>");
const halves = @import_module("<data_utils>");
const pair = struct { a: i16, b: f32 };
const flags = packed struct { a: u3, b: u9 };
"""
TYPES: Final = (
    "u8 u16 u3 u64 i8 i16 i32 i7 i64 f16 bf16 cb16 f32 bool color pair [4]f32 *i16 "
    "mem1d_dsd mem4d_dsd fabin_dsd fabout_dsd circbuf_dsd dsr_dest dsr_src0 dsr_src1 xdsr sr"
)


def assert_known(folder: Path, *conditions: str) -> None:
    asserts = "".join(f"@comptime_assert({condition});\n" for condition in conditions)
    ran(folder, f"{PRELUDE}\ncomptime {{ {asserts} }}\nfn main() void {{}}\n")


@pytest.mark.parametrize(
    ("predicate", "kinds"),
    [
        ("is_unsigned_int", "u8 u16 u3 u64"),
        ("is_signed_int", "i8 i16 i32 i7 i64"),
        ("is_float", "f16 bf16 cb16 f32"),
        ("is_float16", "f16 bf16 cb16"),
        ("is_enabled_float", "f16 f32"),
        ("is_signed", "i8 i16 i32 i7 i64 f16 bf16 cb16 f32"),
        ("is_numeric", "u8 u16 u3 u64 i8 i16 i32 i7 i64 f16 bf16 cb16 f32"),
        ("is_dsd", "mem1d_dsd mem4d_dsd fabin_dsd fabout_dsd circbuf_dsd"),
        ("is_dsr", "dsr_dest dsr_src0 dsr_src1 xdsr sr"),
    ],
)
def test_a_predicate_holds_for_its_types_alone(tmp_path: Path, predicate: str, kinds: str) -> None:
    signs = ("" if kind in kinds.split() else "!" for kind in TYPES.split())
    pairs = zip(signs, TYPES.split(), strict=True)
    assert_known(tmp_path, *(f"{sign}types.{predicate}({kind})" for sign, kind in pairs))


@pytest.mark.parametrize(
    ("kind", "bits", "size", "align"),
    [
        ("u8", 8, 1, 1),
        ("u3", 3, 1, 1),
        ("i16", 16, 2, 2),
        ("f32", 32, 4, 4),
        ("u64", 64, 8, 4),
        ("bool", 1, 1, 1),
        ("[6]f32", 192, 24, 4),
        ("[5]u8", 40, 5, 1),
        ("pair", 48, 6, 4),
        ("flags", 12, 2, 2),
        ("*i16", 16, 2, 2),
    ],
)
def test_sizes_of_types(tmp_path: Path, kind: str, bits: int, size: int, align: int) -> None:
    assert_known(
        tmp_path,
        f"types.bit_size_of({kind}) == {bits}",
        f"types.byte_size_of({kind}) == {size} and types.word_size_of({kind}) == {(size + 1) // 2}",
        f"types.min_byte_align_of({kind}) == {align}",
        f"types.min_word_align_of({kind}) == {(align + 1) // 2}",
    )


def test_types_of_values_and_of_their_bits(tmp_path: Path) -> None:
    assert_known(
        tmp_path,
        "types.bits_type_of(f32) == u32 and types.bits_type_of(f16) == u16",
        "types.bits_type_of(u64) == u64 and types.bits_type_of(u3) == u8",
        "types.has_dsr_type(@get_dsr(dsr_dest, 1)) and !types.has_dsr_type(4)",
        "types.has_dsd_type(@get_dsd(fabin_dsd, .{ .extent = 1 })) and !types.has_dsd_type(4)",
    )


@pytest.mark.parametrize("value", [0, 7, 10, -1, 12345678901234567890, -(2**70)])
def test_integers_become_strings(tmp_path: Path, value: int) -> None:
    assert_known(tmp_path, f'string.comptime_int_to_string({value}) == "{value}"')


def test_a_format_takes_integers_and_strings(tmp_path: Path) -> None:
    assert_known(
        tmp_path,
        'string.fmt("tile_{d}_{d}", .{ 3, -14 }) == "tile_3_-14"',
        'string.fmt("{s}:{{{d}}", .{ "row", @as(u16, 5) }) == "row:{5}"',
        'string.fmt("plain", .{}) == "plain"',
    )


@pytest.mark.parametrize(("text", "message"), [("{x}", "knows {d} and {s}"), ("{d", "without '}'")])
def test_a_wrong_format_is_refused(tmp_path: Path, text: str, message: str) -> None:
    source = f'{PRELUDE}\ncomptime {{ const s = string.fmt("{text}", .{{ 1 }}); }}'
    assert message in refusal(tmp_path, source)


def test_halves_of_integers(tmp_path: Path) -> None:
    source = f"""{PRELUDE}
    var wide: u64 = 0x123456789abcdef0;
    var out: [2]u32;
    var small: [2]u16;
    fn main() void {{
      out[0] = halves.lo32(wide);
      out[1] = halves.hi32(wide);
      small[0] = halves.lo16(out[0]);
      small[1] = halves.hi16(out[0]);
    }}"""
    pe = ran(tmp_path, source)
    assert pe.read("out", "u4").tolist() == [0x9ABCDEF0, 0x12345678]
    assert pe.read("small", "u2").tolist() == [0xDEF0, 0x9ABC]


FILTERED: Final = """
const tc = @import_module("<tile_config>");
const c = @get_color(4);
const in = @get_input_queue(2);
const to = @get_output_queue(3);
const ten = if (@is_arch("wse3")) @get_dsd(fabout_dsd, .{ .extent = 10, .output_queue = to })
  else @get_dsd(fabout_dsd, .{ .extent = 10, .output_queue = to, .fabric_color = c });
var seen = @zeros([20]u16);
var count: u16 = 0;
const numbers = [10]u32{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
const numbers_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{10} -> numbers[i] });
task received(low: u16, high: u16) void { seen[count] = low; count += 1; }
fn main() void {
  CHANGES
  @mov32(ten, numbers_dsd, .{ .async = true });
  finish();
}
comptime {
  @set_local_color_config(c, .{
    .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } },
    .filter = .{ .kind = .{ .counter = true }, .count_data = true,
                 .limit1 = 4, .max_counter = 1 } });
  @initialize_queue(in, .{ .color = c });
  if (@is_arch("wse3")) { @initialize_queue(to, .{ .color = c }); }
  @bind_data_task(received, @get_data_task_id(if (@is_arch("wse3")) in else c));
}
"""


@pytest.mark.parametrize("arch", rig.BOTH)
@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ("", [0, 1, 5, 6]),
        ("tc.filters.set_max_counter(@get_filter_id(c), 2);", [0, 1, 2, 5, 6, 7]),
        ("tc.filters.set_active_limit(@get_filter_id(c), 2);", [0, 1, 3, 4, 6, 7, 9]),
        ("tc.filters.set_counter(@get_filter_id(c), 3);", [2, 3, 7, 8]),
    ],
)
def test_a_counter_filter_changes_while_the_program_runs(
    changes: str, passed: list[int], arch: Arch
) -> None:
    device = rig.run(FILTERED.replace("CHANGES", changes), arch)
    count = int(device.read("count").item())
    np.testing.assert_array_equal(device.read("seen")[:count], passed)
