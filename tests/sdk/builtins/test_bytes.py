"""Memory is made of bytes: arrays of 8-bit numbers, pointers to bytes, addresses as numbers."""

from pathlib import Path

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Outcome, Trap
from tests.sdk.builtins import native_pe
from tests.sdk.csl.machine.one_pe import MAIN, Pe, ran, refusal


def left(folder: Path, source: str, dtype: str = "u2") -> list[int]:
    """What a program leaves in `out`, native and interpreted."""
    found: list[int] = native_pe.run(source, Arch.WSE3).read("out", dtype).tolist()
    assert ran(folder, source).read("out", dtype).tolist() == found
    return found


BODIES = {
    "a byte of a 32-bit number": (
        "var H = @zeros([2]u32); const q = @ptrcast([*]u8, &H); q[2] = 100; q[7] = 1;",
        "out[0] = @as(u16, H[0] >> 16); out[1] = @as(u16, H[1] >> 16);",
        [100, 256],
    ),
    "one pointer to a byte": (
        "var word: u16 = 0x1234; const low = @ptrcast(*u8, &word);",
        "out[0] = low.*; low.* += 1; out[1] = word;",
        [0x34, 0x1235],
    ),
    "an index that run time knows": (
        "var words = @zeros([2]u16); const bytes = @ptrcast([*]u8, &words); var i: u16 = 3;",
        "bytes[i] = 9; bytes[i - 2] = 7; out[0] = words[0]; out[1] = words[1];",
        [7 << 8, 9 << 8],
    ),
    "words of an array of bytes": (
        "var b = [4]u8{ 1, 2, 3, 4 };",
        "const w = @ptrcast([*]u16, &b); out[0] = w[0]; out[1] = w[1];",
        [0x0201, 0x0403],
    ),
    "a pointer into an array of bytes": (
        "var b = [4]i8{ 1, -2, 3, 4 };",
        "const p = &b[1]; p.* -= 1; out[0] = @bitcast(u8, p.*); out[1] = @as(u16, b[2]);",
        [0xFD, 3],
    ),
    "bits of an array of bools": (
        "var flags = @zeros([3]bool);",
        "flags[1] = true; out[0] = @ptrcast([*]u16, &flags)[0]; out[1] = @as(u16, flags[2]);",
        [256, 0],
    ),
}


@pytest.mark.parametrize("case", BODIES)
def test_bytes_lie_one_after_the_other(tmp_path: Path, case: str) -> None:
    globals_, body, expected = BODIES[case]
    source = f"export var out = @zeros([2]u16);\nfn main() void {{ {globals_} {body} }}"
    assert left(tmp_path, source) == expected


@pytest.mark.parametrize(("kind", "step"), [("u8", 1), ("bool", 1), ("u16", 2), ("f32", 4)])
def test_neighbours_are_as_many_bytes_apart_as_an_element_has(
    tmp_path: Path, kind: str, step: int
) -> None:
    source = f"""
export var out = @zeros([2]u16);
var a: [4]{kind};
var i: u16 = 3;
fn main() void {{
  out[0] = @bitcast(u16, &a[1]) - @bitcast(u16, &a[0]);
  out[1] = @bitcast(u16, &a[i]) - @bitcast(u16, &a[0]);
}}
"""
    assert left(tmp_path, source) == [step, 3 * step]


def test_a_pointer_in_memory_is_a_byte_address(tmp_path: Path) -> None:
    pe = ran(tmp_path, "export var a: u16 = 1;\nexport var p = &a;\nfn main() void { p.* += 1; }")
    address = next(s.address for s in pe.image.symbols if s.name == "a")
    assert pe.read("p", "u2").tolist() == [2 * address]


COPIES = """
const four = struct { before: u16, bytes: [3]u8, after: u16 };
export var out: [8]u8 = [8]u8{ 9, 9, 9, 9, 9, 9, 9, 9 };
var it = four{ .before = 1, .bytes = [3]u8{ 1, 2, 3 }, .after = 4 };
fn second(bytes: [3]u8) u8 { return bytes[1]; }
fn main() void {
  const copy = it.bytes;
  @ptrcast(*[3]u8, &out[1]).* = copy;
  it.bytes = [3]u8{ 5, 6, 7 };
  out[5] = second(it.bytes);
  for (it.bytes) |byte, i| { if (i == 2) { out[6] = byte; } }
  out[7] = @as(u8, it.after);
}
"""


def test_arrays_of_bytes_are_copied_byte_by_byte(tmp_path: Path) -> None:
    assert left(tmp_path, COPIES, "u1") == [9, 1, 2, 3, 9, 6, 7, 4]


def test_a_word_at_an_odd_address_stops_the_pe(tmp_path: Path) -> None:
    source = "var a: [4]u8;\nfn main() void { @ptrcast(*u16, &a[1]).* = 1; }"
    pe = Pe(tmp_path, source)
    assert pe.start() is Outcome.TRAPPED
    assert pe.box[mailbox.TRAP] == Trap.MISALIGNED


def test_a_descriptor_of_bytes_is_refused(tmp_path: Path) -> None:
    source = "var a: [4]u8;\nvar d = @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = 4 });\n"
    source += "fn main() void { @mov16(d, 1); }\ncomptime { @export_symbol(main); }"
    assert "a DSD's elements have 16 or 32 bits, 'u8' takes a byte" in refusal(
        tmp_path, source, exports=MAIN
    )


def test_a_pointer_to_one_is_a_pointer_to_an_array_of_one(tmp_path: Path) -> None:
    source = """
export var out: u16 = 5;
fn twice(p: *[1]u16) void { p.*[0] *= 2; }
fn main() void { twice(&out); }
"""
    assert left(tmp_path, source) == [10]


ACCESS = """
var A: [4, 5]i16;
const plain = |i|{3} -> A[1, 2 * i];
const wide = |i, j, k, l|{5, 5, 5, 5} -> A[i + j, k + l + 2];
comptime {
  @comptime_assert(plain.offset == 5 and plain.stride[0] == 2 and plain.extent[0] == 3);
  @comptime_assert(wide.offset == 2 and wide.stride[0] == 1 and wide.stride[1] == -3);
  @comptime_assert(wide.stride[2] == -3 and wide.stride[3] == -23 and wide.extent[3] == 5);
}
export var out = @zeros([2]u16);
fn main() void {
  A[1, 2] = 7;
  const d = @get_dsd(mem1d_dsd, .{ .base_address = plain.base_address, .offset = plain.offset,
                                   .stride = plain.stride, .extent = plain.extent });
  @add16(d, d, 1);
  out[0] = @bitcast(u16, A[1, 2]);
  out[1] = @bitcast(u16, A[1, 3]);
}
"""


def test_a_tensor_access_has_the_fields_of_its_struct(tmp_path: Path) -> None:
    assert left(tmp_path, ACCESS) == [8, 0]
