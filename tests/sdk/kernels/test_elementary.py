"""Exponentials of many numbers, of those too that are none."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.sdk.door.compiled import compile_layout
from openwafer.sdk.kernels.running import STRICT
from tests.tables import case

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("x", [*]f32, true);
  @export_name("main", fn()void);
}
"""
PE = """
param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const elementary = @import_module("<kernels/elementary>", .{ .chunk = 4 });
var x = @zeros([6]f32);
var x_ptr: [*]f32 = &x;
fn main() void {
  elementary.exponential(x_ptr, x_ptr, 6);
  sys.unblock_cmd_stream();
}
comptime {
  @export_symbol(x_ptr, "x");
  @export_symbol(main);
}
"""


@pytest.mark.parametrize("arch", ["wse3", case("wse2", by_default=False)])
def test_exponentials_of_no_numbers_are_none_and_their_neighbours_right(
    arch: str, tmp_path: Path
) -> None:
    (tmp_path / "layout.csl").write_text(LAYOUT)
    (tmp_path / "pe.csl").write_text(PE)
    given = np.array([1.0, np.nan, -np.inf, 0.0, -200.0, 2.0], np.float32)
    with compile_layout(tmp_path / "layout.csl", arch=arch, options=STRICT).run() as run:
        run["x"] = given.reshape(1, 1, -1)
        run.launch("main")
        found = run["x"].ravel()
    np.testing.assert_allclose(found, np.exp(given), rtol=4 * 2.0**-24, atol=2.0**-125)
