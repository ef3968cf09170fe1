"""Where variables lie: arrays in the order of declaration, nothing of the compiler's in between."""

from pathlib import Path

import pytest

from tests.sdk.csl.machine.one_pe import EXPORT_MAIN, MAIN, compile_pe


def places(folder: Path, source: str) -> dict[str, tuple[int, int]]:
    """First byte, and first byte behind, of each variable."""
    image = compile_pe(folder, source + EXPORT_MAIN, exports=MAIN)
    return {s.name: (2 * s.address, 2 * s.address + s.num_bytes) for s in image.symbols}


ARRAYS = """
var second_ptr: [*]f32 = &second;
var first = @zeros([3]i16);
const dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> second[i] });
var moving = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> third[i] });
var second = @zeros([4]f32);
const table = [2]i16{ 1, 2 };
var third = @zeros([3]f32);
var given = [3]i16{ 1, 2, 3 };
fn main() void {
  moving = @increment_dsd_offset(moving, 1, f32);
  @fmovs(moving, dsd);
  for (@range(u16, 2)) |i| { given[i] += table[i]; }
  first[0] = given[1];
  second_ptr[0] = 1.0;
}
"""


def test_arrays_lie_in_the_order_of_declaration_without_anything_between(tmp_path: Path) -> None:
    found = places(tmp_path, ARRAYS)
    first, second, third = (found[name] for name in ("first", "second", "third"))
    assert first[0] % 4 == 0
    assert second[0] == first[0] + 8
    assert third[0] == second[1]


def test_what_begins_with_a_value_lies_before_what_begins_with_zeros(tmp_path: Path) -> None:
    found = places(tmp_path, ARRAYS)
    assert found["given"][1] <= found["first"][0]


@pytest.mark.parametrize("name", ["second_ptr", "moving", "table"])
def test_pointers_descriptors_and_literals_lie_before_all_arrays(tmp_path: Path, name: str) -> None:
    found = places(tmp_path, ARRAYS)
    assert found[name][1] <= found["given"][0]


def test_nothing_lies_behind_the_last_array(tmp_path: Path) -> None:
    found = places(tmp_path, ARRAYS)
    assert max(end for _, end in found.values()) == found["third"][1]


def test_an_overrun_of_one_array_reaches_the_next_one(tmp_path: Path) -> None:
    source = """
var a = @zeros([2]i16);
var d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
var b = @zeros([2]i16);
fn main() void {
  @mov16(d, 7);
  d = @set_dsd_base_addr(d, &b);
  @assert(b[1] == 7);
}
"""
    found = places(tmp_path, source)
    assert found["b"][0] == found["a"][1]


def test_an_alignment_that_is_asked_for_is_kept(tmp_path: Path) -> None:
    source = "var a = @zeros([3]i16);\nvar b: [2]i16 align(64) = @zeros([2]i16);\n"
    found = places(tmp_path, source + "fn main() void { a[0] = 1; b[0] = 1; }")
    assert found["b"][0] % 64 == 0
