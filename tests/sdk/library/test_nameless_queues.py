"""Programs of WSE-2 that send and read and name no queue for a color."""

import pytest

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program.input_queues import described
from tests.sdk.library import rig

COLORS = range(2, 14)
ECHO = """
fn echo{color}() void {{
  @mov32(@get_dsd(fabout_dsd, .{{ .extent = 2, .fabric_color = @get_color({color}),
                                 .output_queue = @get_output_queue(0) }}), sent,
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


NAMELESS = """
const red = @get_color(1);
var pair = [2]u32{ 7, 8 };
const sent = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> pair[i] });
const out = @get_dsd(fabout_dsd, .{ .extent = 2, .fabric_color = red });
const in = @get_dsd(fabin_dsd, .{ .extent = 2, .fabric_color = red });
const in_dsr = @get_dsr(dsr_src1, 3);
comptime { @set_local_color_config(red, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } } }); }
fn main() void {
  CALL;
  finish();
}
"""


@pytest.mark.parametrize(
    ("call", "arch", "said"),
    [
        ("@mov32(out, sent)", Arch.WSE2, ""),
        ("@mov32(sent, in)", Arch.WSE2, ""),
        ("@mov32(out, sent, .{ .async = true })", Arch.WSE2, "fabout_dsd of an asynchronous"),
        ("@mov32(sent, in, .{ .async = true })", Arch.WSE2, "fabin_dsd of an asynchronous"),
        ("@load_to_dsr(in_dsr, in, .{ .async = true })", Arch.WSE2, "fabin_dsd of an async"),
        ("@mov32(out, sent)", Arch.WSE3, "a fabout_dsd of wse3 needs an 'output_queue'"),
        ("@mov32(sent, in)", Arch.WSE3, "a fabin_dsd of wse3 needs an 'input_queue'"),
    ],
)
def test_a_nameless_queue_is_a_warning_where_one_has_to_be_named(
    call: str, arch: Arch, said: str
) -> None:
    warnings = rig.compile_source(NAMELESS.replace("CALL", call), arch).warnings
    found = [warning for warning in warnings if "csl-queue-unnamed" in warning]
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_outputs_without_a_queue_are_described() -> None:
    (image,) = rig.compile_source(NAMELESS.replace("CALL", "@mov32(out, sent)"), Arch.WSE2).images
    assert list(described(image.queues)) == ["output_queue 0: color 1*"]


def test_more_colors_than_queues_share_the_last_one() -> None:
    device = rig.run(SOURCE, Arch.WSE2)
    assert device.read("out").tolist() == [7, 8] * len(COLORS)
