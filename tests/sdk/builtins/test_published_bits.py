"""Bits that the vendor's simulator computed, from its log of landings in a public repository.

In leightonw-cerebras/sandia-sdk-examples, gemm-single-pe/example_simlogs has what goes to a PE and
what comes back, for each generation. Of 24 results each, rounding once gives all, rounding the
product as well 23 and 19. Here is one of each generation that tells the two apart.
"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import openwafer.sdk as wafer

CODE = """
fn chain(sum: [*]f32, a: [*]f32, b: [*]f32) void {
  const one = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> sum[i] });
  for (@range(u16, 4)) |k| { @fmacs(one, one, @set_dsd_base_addr(one, &a[k]), b[k]); }
}
"""
WSE2 = (
    (0x3F0430B7,),
    (0x3D63E667, 0x3EA7C2BD, 0x3F1E5DCC, 0x3EAB035D),
    (0x3C33092A, 0x3EAC2EE1, 0x3F50A2F6, 0x3F4FC22C),
    0x3FB381D9,
)
WSE3 = (
    (0x3F1A9952,),
    (0x3EE53683, 0x3F7208F1, 0x3F707D2F, 0x3E07761C),
    (0x3EE061ED, 0x3F136E07, 0x3F102884, 0x3E5E29BC),
    0x3FF37DDA,
)


def floats(words: tuple[int, ...]) -> NDArray[np.float32]:
    return np.array(words, np.uint32).view(np.float32)


@pytest.mark.parametrize(("arch", "row"), [("wse2", WSE2), ("wse3", WSE3)])
def test_a_product_is_not_rounded_before_it_is_added(
    arch: str, row: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int], tmp_path: Path
) -> None:
    total, a, b = (floats(words) for words in row[:3])
    (tmp_path / "chain.csl").write_text(CODE, encoding="utf-8")
    called = wafer.call(tmp_path / "chain.csl", "chain", total, a, b, arch=arch)
    assert called.arrays[0].view(np.uint32) == row[3]
    rounded_twice = total[0]
    for x, y in zip(a, b, strict=True):
        rounded_twice = rounded_twice + x * y
    assert rounded_twice.view(np.uint32) != row[3]
