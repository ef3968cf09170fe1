"""Words pass ports of a compiled program: sent, received, counted, recorded and done again."""

import json
from pathlib import Path

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.profile.segments import Reason

LAYOUT = """
const enters = @get_color(4);
const leaves = @get_color(5);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  for (@range(u16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{
      .memcpy_params = memcpy.get_params(x), .is_at_work = x == 1,
      .enters = enters, .leaves = leaves });
  }
  @set_color_config(0, 0, enters, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ EAST } } });
  @set_color_config(1, 0, enters, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @set_color_config(1, 0, leaves, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
}
"""
CODE = """
param memcpy_params;
param is_at_work: bool;
param enters: color;
param leaves: color;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const from_port = @get_input_queue(2);
const to_port = @get_output_queue(3);
const work_id = @get_data_task_id(from_port);
task work(value: f32) void {
  const out = @get_dsd(fabout_dsd,
    .{ .extent = 1, .fabric_color = leaves, .output_queue = to_port });
  @fmovs(out, 2.0 * value);
}
comptime {
  if (is_at_work) {
    @bind_data_task(work, work_id);
    @initialize_queue(from_port, .{ .color = enters });
    @initialize_queue(to_port, .{ .color = leaves });
  }
}
"""
WEST = wafer.Port("west", 0, 0, "west", into=(4,))  # type: ignore[arg-type]
EAST = wafer.Port("east", 1, 0, "east", out=(5,))  # type: ignore[arg-type]
EDGE = wafer.Edge((WEST, EAST))
VALUES = np.arange(40, dtype=np.float32)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> wafer.Compiled:
    folder = tmp_path_factory.mktemp("ports")
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(CODE)
    return wafer.compile(folder / "layout.csl")


def run(program: wafer.Compiled, **options: object) -> None:
    given = {"log_folder": None, "edge": EDGE, **options}
    with program.run(wafer.RuntimeOptions(**given)) as one:  # type: ignore[arg-type]
        one.send_port("west", VALUES[:30])
        first = one.receive_port("east", 25, np.float32)
        one.send_port("west", VALUES[30:])
        rest = one.receive_port("east", 15, np.float32)
        assert np.array_equal(np.concatenate([first, rest]), 2 * VALUES)
        entered, left = one.passed("west")[0], one.passed("east")[1]
        assert (entered.num_words, left.num_words) == (40, 40)
        assert left.last == one.cycles - 1


def test_a_run_that_went_through_ports_is_done_again_from_its_journal(
    program: wafer.Compiled, tmp_path: Path
) -> None:
    path = tmp_path / "run.journal"
    run(program, journal=path)
    again = program.replay(path)
    got = [words[0] for words in again.results if words is not None]
    assert np.array_equal(np.concatenate(got).view(np.float32), 2 * VALUES)
    middle = program.replay(path, until=60).simulator
    assert 0 < middle.passed(WEST, is_into=True).num_words < 40


def test_a_record_has_the_way_of_each_word_from_port_to_port(
    program: wafer.Compiled, tmp_path: Path
) -> None:
    run(program, record=tmp_path / "run.record")
    record = wafer.read_record(tmp_path / "run.record")
    found = wafer.wavelets(record)
    by_host = found.from_x < 0
    assert by_host.sum() == (~by_host).sum() == 40
    assert (found.end[by_host] == wafer.End.CONSUMED).all()
    assert (found.hops[by_host] == 1).all()
    assert (found.end[~by_host] == wafer.End.SUNK).all()
    path = wafer.critical_path(record, program.program)
    host, hops = path.segments[:2]
    assert (host.x, hops.reason, hops.color, hops.begin) == (-1, Reason.HOPS, 4, 1)


def test_the_log_says_what_passed_each_port(program: wafer.Compiled, tmp_path: Path) -> None:
    run(program, log_folder=tmp_path)
    told = json.loads((tmp_path / "sim_stats.json").read_text())
    assert told["port_west_words_in"] == told["port_east_words_out"] == 40
    assert "CTF Stats: port_east_words_out = 40" in (tmp_path / "sim.log").read_text()


def test_control_wavelets_enter_as_such(program: wafer.Compiled) -> None:
    with (
        pytest.raises(OpenwaferError, match=r"a control wavelet of color 4 .* names task 9"),
        program.run(wafer.RuntimeOptions(log_folder=None, edge=EDGE)) as one,
    ):
        one.send_port("west", np.array([1, 9 << 16], np.uint32), is_control=[False, True])


def test_words_of_another_size_are_refused(program: wafer.Compiled) -> None:
    one = program.run(wafer.RuntimeOptions(log_folder=None, edge=EDGE))
    with pytest.raises(OpenwaferError, match="port 'west' takes 2 or 4 bytes a wavelet"):
        one.send_port("west", np.zeros(3))
    one.close()


def test_copies_are_counted_apart_from_what_the_program_does(program: wafer.Compiled) -> None:
    with program.run(wafer.RuntimeOptions(log_folder=None, edge=EDGE)) as one:
        one.send_port("west", VALUES)
        one.receive_port("east", 40)
        assert one.copy_cycles == 0 < one.cycles
