"""<memcpy>: streams to and from the host, and the old names."""

import numpy as np
import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.options import CompileOptions
from tests.sdk.library import rig

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1,
  .MEMCPYH2D_1 = 5, .MEMCPYD2H_1 = @get_color(6) });
layout {
  @set_rectangle(2, 1);
  for (@range(i16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x) });
  }
}
"""
ECHO = """
param memcpy_params: comptime_struct;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const h2d: color = if (@is_same_type(@type_of(sys_mod.MEMCPYH2D_1), color)) sys_mod.MEMCPYH2D_1
                   else @get_color(sys_mod.MEMCPYH2D_1);
const in_queue = @get_input_queue(2);
const out_queue = @get_output_queue(3);
const from_host = if (@is_arch("wse2")) @get_data_task_id(h2d) else @get_data_task_id(in_queue);
var word = @zeros([1]u32);
const word_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> word[i] });
const out = OUT;
task echo(value: u32) void {
  word[0] = value + 1;
  @mov32(out, word_dsd);
}
comptime {
  @bind_data_task(echo, from_host);
  @initialize_queue(in_queue, .{ .color = h2d });
  if (@is_arch("wse3")) { @initialize_queue(out_queue, .{ .color = sys_mod.MEMCPYD2H_1 }); }
}
"""
BY_FIELDS = """@get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = sys_mod.MEMCPYD2H_1,
                                        .output_queue = out_queue })"""
BY_FUNCTION = "sys_mod.get_streaming_fabout_dsd(sys_mod.MEMCPYD2H_1, 1, out_queue)"


@pytest.mark.parametrize("arch", rig.BOTH)
@pytest.mark.parametrize("out", [BY_FIELDS, BY_FUNCTION], ids=["fields", "function"])
def test_words_stream_to_each_pe_and_back(arch: Arch, out: str) -> None:
    files = {"layout.csl": LAYOUT, "pe.csl": ECHO.replace("OUT", out)}
    device = rig.load(rig.compile_files(files, CompileOptions(arch=arch, is_memcpy=True)))
    for x in range(2):
        device.simulator.inject(5, x, 0, np.array([10 * x, 20], np.uint32))
    device.simulator.run_until_collected(6, [(0, 0), (1, 0)], 2)
    assert [device.simulator.take(6, x, 0, 2).tolist() for x in range(2)] == [[1, 21], [11, 21]]


OLD_LAYOUT = """
const memcpy = @import_module("<memcpy_multi/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("main", fn()void);
}
"""
OLD_PE = """
param memcpy_params: comptime_struct;
const sys_mod = @import_module("<memcpy_multi/memcpy>",
                               @concat_structs(memcpy_params, .{ .data_type = f32 }));
export var x = @zeros([1]u16);
fn main() void { x[0] = 3; sys_mod.unblock_cmd_stream(); }
comptime { @export_symbol(main); }
"""


def test_programs_with_the_old_names_run() -> None:
    files = {"layout.csl": OLD_LAYOUT, "pe.csl": OLD_PE}
    device = rig.load(rig.compile_files(files, CompileOptions(is_memcpy=True)))
    device.start("main")
    assert device.read("x").tolist() == [3]
