"""`@map`: one call for each element."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Outcome, Request
from tests.sdk.csl.machine.one_pe import EXPORT_MAIN, MAIN, Pe, compile_pe, ran, refusal

DATA = """
var a = [4]f32{ 1.0, 4.0, 9.0, 16.0 };
var b = [4]f32{ 1.0, 2.0, 3.0, 4.0 };
var sum: f32 = 0.5;
var calls: i16 = 0;
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const b_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> b[i] });
const short_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> b[i] });
fn twice(x: f32) f32 { calls += 1; return x + x; }
fn both(x: f32, k: f32, y: f32) f32 { return x * k + y; }
fn add(x: f32, to: *f32) f32 { return to.* + x; }
fn count(x: f32) void { calls += 1; }
fn main() void { CALL; }
"""


def mapped(folder: Path, call: str) -> Pe:
    return ran(folder, DATA.replace("CALL", call))


def test_results_go_to_the_output(tmp_path: Path) -> None:
    pe = mapped(tmp_path, "@map(twice, a_dsd, b_dsd)")
    assert pe.read("b", "f4").tolist() == [2, 8, 18, 32]


def test_values_are_passed_along_with_elements(tmp_path: Path) -> None:
    pe = mapped(tmp_path, "@map(both, a_dsd, 10.0, b_dsd, a_dsd)")
    expected = np.array([1, 4, 9, 16], "f4") * 10 + np.array([1, 2, 3, 4], "f4")
    assert pe.read("a", "f4").tolist() == expected.tolist()


def test_a_pointer_carries_a_sum(tmp_path: Path) -> None:
    pe = mapped(tmp_path, "@map(add, a_dsd, &sum, &sum)")
    assert pe.read("sum", "f4").tolist() == [30.5]


def test_a_function_without_result_runs_for_its_effects(tmp_path: Path) -> None:
    assert mapped(tmp_path, "@map(count, a_dsd)").read("calls", "i2").tolist() == [4]


def test_the_shortest_argument_ends_the_loop(tmp_path: Path) -> None:
    pe = mapped(tmp_path, "@map(both, a_dsd, 1.0, short_dsd, a_dsd)")
    assert pe.read("a", "f4").tolist() == [2, 6, 9, 16]


def test_a_result_for_which_there_is_no_room_is_dropped(tmp_path: Path) -> None:
    pe = mapped(tmp_path, "@map(twice, a_dsd, short_dsd)")
    assert pe.read("b", "f4").tolist() == [2, 8, 3, 4]
    assert pe.read("calls", "i2").tolist() == [3]


REBASED = """
var wide = [6]f32{ 1.0, 2.0, 3.0, 4.0, 5.0, 6.0 };
var narrow = [6]i16{ 1, 2, 3, 4, 5, 6 };
var small: [1]i16;
var large: [1]f32;
var total: f32 = 0.0;
var count: i16 = 0;
KIND small_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> small[-2 * i] });
KIND large_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> large[2 * i] });
fn add(x: f32, to: *f32) f32 { return 10.0 * to.* + x; }
fn sum(x: i16, to: *i16) i16 { return 10 * to.* + x; }
fn main() void {
  @map(add, @increment_dsd_offset(@set_dsd_base_addr(small_dsd, wide), 5, f32), &total, &total);
  @map(sum, @set_dsd_base_addr(large_dsd, narrow), &count, &count);
}
"""


@pytest.mark.parametrize("kind", ["const", "var"])
def test_strides_count_elements_of_the_function(tmp_path: Path, kind: str) -> None:
    pe = ran(tmp_path, REBASED.replace("KIND", kind))
    assert pe.read("total", "f4").tolist() == [642]
    assert pe.read("count", "i2").tolist() == [135]


FABRIC = """
const out = @get_dsd(fabout_dsd, .{
  .extent = 2, .fabric_color = @get_color(1), .output_queue = @get_output_queue(1) });
var a = [2]f32{ 1.0, 4.0 };
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[i] });
fn twice(x: f32) f32 { return x + x; }
fn main() void { @map(twice, a_dsd, out); }
"""


def test_fabric_elements_are_moved_one_by_one(tmp_path: Path) -> None:
    pe = Pe(tmp_path, FABRIC)
    sent = []
    outcome = pe.start()
    while outcome is Outcome.SUSPENDED:
        assert pe.box[mailbox.REQUEST] == Request.VECTOR
        sent.append(int(pe.box[mailbox.OPERANDS + mailbox.OPERAND_WORDS + 1]))
        outcome = pe.resume()
    assert np.array(sent, "u4").view("f4").tolist() == [2, 8]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("@map(twice, a_dsd)", "takes 2 arguments, 1 provided"),
        ("@map(twice, 1.0, &sum)", "@map needs a DSD or DSR among its arguments"),
        ("@map(twice, a_dsd, 5.0)", "'mem1d_dsd, mem4d_dsd, fabout_dsd, dsr_dest or *f32'"),
    ],
)
def test_a_wrong_map_is_explained(tmp_path: Path, call: str, message: str) -> None:
    source = DATA.replace("CALL", call) + "comptime { @export_symbol(main); }"
    assert message in refusal(tmp_path, source, exports=MAIN)


def test_a_fifo_is_not_mapped(tmp_path: Path) -> None:
    source = DATA.replace("CALL", "@map(twice, fifo, a_dsd)") + EXPORT_MAIN
    source += "var buffer: [4]f32; const fifo = @allocate_fifo(buffer);"
    assert "dsr_src1 or a value', got: 'fifo'" in refusal(tmp_path, source, exports=MAIN)


def test_callbacks_of_other_modules_may_be_mapped(tmp_path: Path) -> None:
    source = DATA.replace("CALL", "@map(math.sqrt_f32, a_dsd, b_dsd)")
    source += 'const math = @import_module("<math>"); comptime { @export_symbol(main); }'
    image = compile_pe(tmp_path, source, exports=MAIN)
    assert "math[sqrt]" in image.code
