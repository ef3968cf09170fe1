"""<dsd_ops>: the operation that a type asks for, against numpy in that type."""

import numpy as np
import pytest

from tests.sdk.library import rig

N = 4
HALF = [1.5, -2.0, 0.25, 100.0]
SINGLE = [3.0, -0.5, 1e-3, 7.0]
SHORT = [5, -7, 300, -2]
OUTPUTS = {
    "mov_h": "f16",
    "mov_s": "f32",
    "mov_i": "i16",
    "mov_u": "u32",
    "h_of_s": "f16",
    "h_of_i": "f16",
    "s_of_h": "f32",
    "s_of_i": "f32",
    "i_of_h": "i16",
    "i_of_s": "i16",
    "add_h": "f16",
    "add_s": "f32",
    "add_hs": "f32",
    "add_i": "i16",
    "sub_h": "f16",
    "sub_s": "f32",
    "sub_i": "i16",
    "mul_h": "f16",
    "mul_s": "f32",
    "fmac_h": "f16",
    "fmac_s": "f32",
    "fmac_hs": "f32",
    "neg_h": "f16",
    "neg_s": "f32",
    "abs_h": "f16",
    "abs_s": "f32",
    "max_h": "f16",
    "max_s": "f32",
    "scale_s": "f32",
}
CALLS = """
  ops.mov(f16, mov_h_d, h_d, .{});
  ops.mov(f32, mov_s_d, s_d, .{});
  ops.mov(i16, mov_i_d, i_d, .{});
  ops.mov(u32, mov_u_d, u_d, .{});
  ops.convert(f16, f32, h_of_s_d, s_d, .{});
  ops.convert(f16, i16, h_of_i_d, i_d, .{});
  ops.convert(f32, f16, s_of_h_d, h_d, .{});
  ops.convert(f32, i16, s_of_i_d, i_d, .{});
  ops.convert(i16, f16, i_of_h_d, h_d, .{});
  ops.convert(i16, f32, i_of_s_d, s_d, .{});
  ops.add(f16, f16, add_h_d, h_d, h_d, .{});
  ops.add(f32, f32, add_s_d, s_d, s_d, .{});
  ops.add(f32, f16, add_hs_d, s_d, h_d, .{});
  ops.add(i16, i16, add_i_d, i_d, i_d, .{});
  ops.sub(f16, sub_h_d, h_d, @as(f16, 0.5), .{});
  ops.sub(f32, sub_s_d, s_d, @as(f32, 0.5), .{});
  ops.sub(i16, sub_i_d, i_d, @as(i16, 9), .{});
  ops.mul(f16, mul_h_d, h_d, h_d, .{});
  ops.mul(f32, mul_s_d, s_d, s_d, .{});
  ops.fmac(f16, f16, fmac_h_d, h_d, h_d, @as(f16, 3.0), .{});
  ops.fmac(f32, f32, fmac_s_d, s_d, s_d, @as(f32, 3.0), .{});
  ops.fmac(f32, f16, fmac_hs_d, s_d, h_d, @as(f16, 3.0), .{});
  ops.neg(f16, neg_h_d, h_d, .{});
  ops.neg(f32, neg_s_d, s_d, .{});
  ops.abs(f16, abs_h_d, h_d, .{});
  ops.abs(f32, abs_s_d, s_d, .{});
  ops.max(f16, max_h_d, h_d, @as(f16, 1.0), .{});
  ops.max(f32, max_s_d, s_d, @as(f32, 1.0), .{});
  ops.scale(f32, scale_s_d, s_d, @as(i16, 3), .{});
"""


def array(name: str, value: str) -> str:
    access = f".{{ .tensor_access = |i|{{{N}}} -> {name}[i] }}"
    return f"var {name} = {value}; const {name}_d = @get_dsd(mem1d_dsd, {access});"


def source() -> str:
    parts = [
        array("h", f"[{N}]f16{{ {', '.join(map(str, HALF))} }}"),
        array("s", f"[{N}]f32{{ {', '.join(map(str, SINGLE))} }}"),
        array("i", f"[{N}]i16{{ {', '.join(map(str, SHORT))} }}"),
        array("u", f"[{N}]u32{{ 1, 70000, 3, 4000000000 }}"),
        *(array(name, f"@zeros([{N}]{kind})") for name, kind in OUTPUTS.items()),
    ]
    head = 'const ops = @import_module("<dsd_ops>");\n'
    return head + "\n".join(parts) + f"\nfn main() void {{ {CALLS} finish(); }}"


H, S, J = np.array(HALF, np.float16), np.array(SINGLE, np.float32), np.array(SHORT, np.int16)
WANTED = {
    "mov_h": H,
    "mov_s": S,
    "mov_i": J,
    "mov_u": np.array([1, 70000, 3, 4000000000], np.uint32),
    "h_of_s": S.astype(np.float16),
    "h_of_i": J.astype(np.float16),
    "s_of_h": H.astype(np.float32),
    "s_of_i": J.astype(np.float32),
    "i_of_h": np.trunc(H).astype(np.int16),
    "i_of_s": np.trunc(S).astype(np.int16),
    "add_h": H + H,
    "add_s": S + S,
    "add_hs": S + H.astype(np.float32),
    "add_i": J + J,
    "sub_h": H - np.float16(0.5),
    "sub_s": S - np.float32(0.5),
    "sub_i": J - np.int16(9),
    "mul_h": H * H,
    "mul_s": S * S,
    "fmac_h": (H.astype(np.float64) + H.astype(np.float64) * 3).astype(np.float16),
    "fmac_s": (S.astype(np.float64) + S.astype(np.float64) * 3).astype(np.float32),
    "fmac_hs": (S.astype(np.float64) + H.astype(np.float64) * 3).astype(np.float32),
    "neg_h": -H,
    "neg_s": -S,
    "abs_h": np.abs(H),
    "abs_s": np.abs(S),
    "max_h": np.maximum(H, np.float16(1)),
    "max_s": np.maximum(S, np.float32(1)),
    "scale_s": S * np.float32(8),
}


@pytest.fixture(scope="module")
def results() -> rig.Device:
    return rig.run(source())


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_type_chooses_the_operation(results: rig.Device, name: str) -> None:
    np.testing.assert_array_equal(results.read(name), WANTED[name])
