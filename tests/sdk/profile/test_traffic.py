"""Loads of links are what the program sends."""

from dataclasses import replace
from pathlib import Path

import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import journal as journals
from openwafer.sdk.profile import Profile, profile_of_journal, profile_text
from openwafer.sdk.profile.model import ColorLoad, LinkLoad
from openwafer.sdk.profile.page import profile_page
from openwafer.sdk.profile.traffic import with_traffic

NUM = 10
LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 3, .height = 1 });
const red = @get_color(4);
layout {
  @set_rectangle(3, 1);
  for (@range(u16, 3)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{
      .memcpy_params = memcpy.get_params(x), .is_first = x == 0, .is_last = x == 2, .red = red });
  }
  @set_color_config(0, 0, red, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, red, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ EAST } } });
  @set_color_config(2, 0, red, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @export_name("main", fn() void);
}
"""
CODE = """
param memcpy_params;
param is_first: bool;
param is_last: bool;
param red: color;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const in_queue = @get_input_queue(2);
const out_queue = @get_output_queue(2);
var words: [10]u32;
const words_dsd = @get_dsd(mem1d_dsd, .{ .base_address = &words, .extent = 10 });
const out = @get_dsd(fabout_dsd, .{ .extent = 10, .fabric_color = red, .output_queue = out_queue });
const in = @get_dsd(fabin_dsd, .{ .extent = 10, .fabric_color = red, .input_queue = in_queue });
fn main() void {
  if (is_first) { @mov32(out, words_dsd); }
  if (is_last) { @mov32(words_dsd, in); }
  sys.unblock_cmd_stream();
}
comptime {
  @initialize_queue(in_queue, .{ .color = red });
  @initialize_queue(out_queue, .{ .color = red });
  @export_symbol(main);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program")


@pytest.fixture(scope="module")
def profile(folder: Path) -> Profile:
    """Of ten words that go from the first of three PEs to the last one."""
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(CODE, encoding="utf-8")
    program = wafer.compile(folder / "layout.csl")
    program.save(folder / "out")
    options = wafer.RuntimeOptions(log_folder=None, journal=folder / "run.journal")
    with program.run(options) as run:
        run.launch("main")
    journal = journals.read(folder / "run.journal")
    return profile_of_journal(program.program, journal, has_record=True)


def test_each_link_has_the_words_that_pass_over_it(profile: Profile) -> None:
    assert profile.traffic is not None
    assert profile.traffic.links == (
        LinkLoad("from west", 2 * NUM, NUM, 1, 0),
        LinkLoad("from the core", NUM, NUM, 0, 0),
        LinkLoad("to the core", NUM, NUM, 2, 0),
    )
    assert profile.traffic.colors == (ColorLoad(4, NUM, 2 * NUM),)


def test_the_busiest_link_is_a_map(profile: Profile) -> None:
    (layer,) = profile.fabric_map.layers[-1:]
    assert (layer.name, layer.cycles) == ("wavelets of the busiest link", (NUM, NUM, NUM))


def test_loads_stand_in_the_text_and_on_the_page(profile: Profile) -> None:
    assert "Ways into routers and cores" in profile_text(profile)
    assert "<h2>Links</h2>" in profile_page(profile)
    assert "Links" not in profile_page(replace(profile, traffic=None))


def test_the_critical_path_is_that_of_the_words(profile: Profile) -> None:
    path = profile.critical_path
    assert path is not None
    assert (path.segments[0].begin, path.segments[-1].end) == (0, path.cycles)
    assert "hop" in profile_text(profile).partition("Critical path")[2]
    assert "<h2>Critical path</h2>" in profile_page(profile)
    assert "Critical path" not in profile_page(replace(profile, critical_path=None))


def test_who_waits_is_told_with_the_color(profile: Profile) -> None:
    states = {one.state: one.colors for one in profile.times() if one.slot == "main"}
    assert states["input 2"] == (4,)


def test_a_record_of_a_part_is_refused(profile: Profile, folder: Path) -> None:
    options = wafer.RecordOptions(folder / "part.record", colors=(1,))
    wafer.load(folder / "out").replay(folder / "run.journal", record=options)
    with pytest.raises(OpenwaferError, match="no record of all that the program"):
        with_traffic(profile, wafer.read_record(options.path))
