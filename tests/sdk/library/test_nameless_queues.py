"""Programs of WSE-2 that read from colors and name no queue for them."""

from openwafer.sdk.arch.generation import Arch
from tests.sdk.library import rig

COLORS = range(2, 14)
ECHO = """
fn echo{color}() void {{
  @mov32(@get_dsd(fabout_dsd, .{{ .extent = 2, .fabric_color = @get_color({color}) }}), sent,
         .{{ .async = true }});
  @mov32(@get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{2}} -> out[{at} + i] }}),
         @get_dsd(fabin_dsd, .{{ .extent = 2, .fabric_color = @get_color({color}) }}));
}}
comptime {{
  @set_local_color_config(@get_color({color}),
                          .{{ .routes = .{{ .rx = .{{ RAMP }}, .tx = .{{ RAMP }} }} }});
}}
"""
SOURCE = f"""
var pair = [2]u32{{ 7, 8 }};
const sent = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{2}} -> pair[i] }});
export var out = @zeros([{2 * len(COLORS)}]u32);
{"".join(ECHO.format(color=color, at=2 * at) for at, color in enumerate(COLORS))}
fn main() void {{
  {" ".join(f"echo{color}();" for color in COLORS)}
  finish();
}}
"""


def test_colors_that_take_turns_are_a_warning() -> None:
    (warning,) = rig.compile_source(SOURCE, Arch.WSE2).warnings
    assert "colors 9, 10, 11, 12, 13 take turns on input_queue 7" in warning


def test_more_colors_than_queues_share_the_last_one() -> None:
    device = rig.run(SOURCE, Arch.WSE2)
    assert device.read("out").tolist() == [7, 8] * len(COLORS)
