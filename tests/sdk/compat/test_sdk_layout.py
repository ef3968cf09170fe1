"""Layouts in Python, compiled and run: ports, connections, streams, symbols."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.sdkruntimepybind import (
    Edge,
    Route,
    RoutingPosition,
    SdkLayout,
    SdkRuntime,
    SdkTarget,
    get_platform,
)

STAGE = """\
param size: u16;
param rx: color;
param tx: color;
const in_q = @get_input_queue(2);
const out_q = @get_output_queue(3);
const in = @get_dsd(fabin_dsd, .{ .extent = size, .fabric_color = rx, .input_queue = in_q });
const out = @get_dsd(fabout_dsd, .{ .extent = size, .fabric_color = tx, .output_queue = out_q });
export var factor: [1]f32 = [1]f32{ 1.0 };
const main_id = @get_local_task_id(24);
task main() void {
  @fmuls(out, in, factor[0], .{ .async = true });
}
comptime {
  @bind_local_task(main, main_id);
  @activate(main_id);
  @initialize_queue(in_q, .{ .color = rx });
  if (@is_arch("wse3")) { @initialize_queue(out_q, .{ .color = tx }); }
}
"""
SIZE = 6
RAMP_IN = RoutingPosition().set_input([Route.RAMP])
RAMP_OUT = RoutingPosition().set_output([Route.RAMP])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stage.csl").write_text(STAGE)


def two_stages(target: SdkTarget) -> tuple[SdkLayout, str, str]:
    """Lay out two stages that turn their backs on each other, between two streams."""
    layout = SdkLayout(target)
    ports = []
    for name, place, edge in (("one", (2, 1), Edge.LEFT), ("two", (5, 3), Edge.RIGHT)):
        region = layout.create_code_region("stage.csl", name, 1, 1)
        rx, tx = region.color("rx"), region.color("tx")
        region.set_param_all("size", SIZE)
        region.set_param_all(rx)
        region.set_param_all(tx)
        region.set_symbol_all("factor", np.array([place[0]], np.float32), 1, 1)
        region.place(*place)
        into = region.create_input_port(rx, Edge.TOP, [RAMP_OUT], SIZE)
        ports.append((into, region.create_output_port(tx, edge, [RAMP_IN], SIZE)))
    layout.connect(ports[0][1], ports[1][0])
    return (
        layout,
        layout.create_input_stream(ports[0][0]),
        layout.create_output_stream(ports[1][1]),
    )


def test_what_a_port_gives_until_the_fabric_is_at_rest_goes_to_a_file() -> None:
    layout, into, out = two_stages(SdkTarget.WSE3)
    runtime = SdkRuntime(layout.compile("out"), get_platform(), memcpy_required=False)
    runtime.load()
    runtime.run()
    sent = np.arange(SIZE, dtype=np.float32)
    runtime.send(into, sent, nonblock=True)
    runtime.receive_tofile(out, "received.bin")
    runtime.stop()
    assert np.fromfile("received.bin", "<f4").tolist() == (sent * 10).tolist()


@pytest.mark.parametrize("target", list(SdkTarget))
def test_data_flows_through_streams_and_connections(target: SdkTarget) -> None:
    layout, into, out = two_stages(target)
    runtime = SdkRuntime(layout.compile("out"), get_platform(), memcpy_required=False)
    runtime.load()
    runtime.run()
    sent, received = np.arange(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
    runtime.send(into, sent, nonblock=True)
    runtime.receive(out, received, SIZE, nonblock=True)
    runtime.stop()
    np.testing.assert_array_equal(received, sent * 2 * 5)
    assert runtime.read_symbol(5, 3, "factor", "float32").tolist() == [5.0]


def test_a_color_is_its_number_where_the_parameter_is_an_integer(tmp_path: Path) -> None:
    newer = STAGE.replace("param tx: color", "param tx_id: u16")
    newer = newer.replace("const in_q", "const tx = @get_color(tx_id);\nconst in_q", 1)
    (tmp_path / "stage.csl").write_text(newer)
    layout = SdkLayout(SdkTarget.WSE3)
    region = layout.create_code_region("stage.csl", "r", 1, 1)
    region.set_param_all("size", 1)
    region.set_param_all(region.color("rx"))
    region.set_param_all("tx_id", region.color("tx", 7))
    layout.compile("out")
    assert ".tx_id = 7" in Path("out/generated/layout.csl").read_text()


def test_a_region_without_a_file_says_so() -> None:
    layout = SdkLayout(SdkTarget.WSE3)
    layout.create_code_region("nothing.csl", "r", 1, 1)
    with pytest.raises(OpenwaferError, match=r"region r: there is no file nothing\.csl"):
        layout.compile("out")


def test_the_layout_can_be_read_as_csl() -> None:
    two_stages(SdkTarget.WSE3)[0].compile("out")
    text = Path("out/generated/layout.csl").read_text()
    assert "@set_tile_code(2, 1, " in text
    assert ".size = 6" in text


def test_ports_have_numbers_and_places(capsys: pytest.CaptureFixture[str]) -> None:
    layout, into, _ = two_stages(SdkTarget.WSE3)
    runtime = SdkRuntime(layout.compile("out"), memcpy_required=False)
    assert runtime.get_port_id(into) == 0
    runtime.report_port_infos()
    assert "one_rx: input, color 22, PE 2, 0\n" in capsys.readouterr().out


def test_a_port_that_is_not_there_suggests_those_that_are() -> None:
    runtime = SdkRuntime(two_stages(SdkTarget.WSE3)[0].compile("out"), memcpy_required=False)
    with pytest.raises(OpenwaferError, match=r"no port 'one_tx'(.|\n)*did you mean 'one_rx'"):
        runtime.get_port_id("one_tx")


def test_the_host_sends_to_inputs_alone() -> None:
    layout, _, out = two_stages(SdkTarget.WSE3)
    runtime = SdkRuntime(layout.compile("out"), get_platform(), memcpy_required=False)
    runtime.load()
    runtime.run()
    with pytest.raises(OpenwaferError, match="is a stream of an output port: the host receives"):
        runtime.send(out, np.zeros(SIZE, np.float32))


def test_regions_that_overlap_are_refused() -> None:
    layout = SdkLayout(SdkTarget.WSE2)
    for name in ("a", "b"):
        layout.create_code_region("stage.csl", name, 2, 1)
    with pytest.raises(OpenwaferError, match=r"regions a and b both lie on PE \(0, 0\)"):
        layout.compile("out")


def test_stacked_regions_lie_side_by_side() -> None:
    layout = SdkLayout(SdkTarget.WSE2)
    regions = [layout.create_code_region("stage.csl", name, 2, 3) for name in "abc"]
    assert layout.hstack(regions) == 6
    assert [region.origin for region in regions] == [(0, 0), (2, 0), (4, 0)]


def test_a_symbol_that_the_code_lacks_is_refused() -> None:
    layout = SdkLayout(SdkTarget.WSE3)
    region = layout.create_code_region("stage.csl", "r", 1, 1)
    region.set_param_all("size", 1)
    for name in ("rx", "tx"):
        region.set_param_all(region.color(name))
    region.set_symbol_all("weight", np.zeros(1, np.float32), 1, 1)
    with pytest.raises(OpenwaferError, match="region r gives 4 bytes for weight"):
        layout.compile("out")
