"""Launches reach PEs in turns; what waits for its neighbours comes to the same end."""

from pathlib import Path

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host.delays import DELAYS_VARIABLE, HostDelays, delays_of_environment
from openwafer.sdk.host.journal import read
from openwafer.sdk.host.replaying import replay

DRAWN = ((1, 0), (2, 0), (1, 1))
LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 4, .height = 1 });
layout {
  @set_rectangle(4, 1);
  for (@range(u16, 4)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x) });
  }
  @export_name("began", [*]u16, false);
  @export_name("main", fn() void);
}
"""
CODE = """param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const timestamp = @import_module("<time>");
var began: [3]u16 = @zeros([3]u16);
var began_ptr: [*]u16 = &began;
fn main() void {
  timestamp.enable_tsc();
  timestamp.get_timestamp(&began);
  sys.unblock_cmd_stream();
}
comptime {
  @export_symbol(began_ptr, "began");
  @export_symbol(main);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> wafer.Compiled:
    """Each PE notes when it began."""
    folder = tmp_path_factory.mktemp("delays")
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(CODE, encoding="utf-8")
    return wafer.compile(folder / "layout.csl")


def cycles(program: wafer.Compiled, options: wafer.RuntimeOptions) -> int:
    with program.run(options) as run:
        run.launch("main")
        run["began"]
    return run.cycles


def test_turns_have_each_pe_once_and_are_drawn_by_seed_and_function() -> None:
    drawn = [
        HostDelays(seed, 50).turns(30, function) for seed, function in ((1, 0), (2, 0), (1, 1))
    ]
    for turns in drawn:
        assert sorted(np.concatenate([pes for _, pes in turns]).tolist()) == list(range(30))
        assert all(1 <= num_cycles <= 50 for num_cycles, _ in turns)
    again = HostDelays(1, 50).turns(30, 0)
    assert str(again) == str(drawn[0]) not in (str(drawn[1]), str(drawn[2]))


def test_a_run_with_delays_is_done_again_by_its_journal(
    program: wafer.Compiled, tmp_path: Path
) -> None:
    path = tmp_path / "run.journal"
    delays = HostDelays(3, 500)
    late = cycles(program, wafer.RuntimeOptions(log_folder=None, journal=path, delays=delays))
    assert read(path).rules.delays == delays
    assert replay(program.program, path).simulator.cycle == late


def test_the_environment_names_seed_and_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert delays_of_environment() is None
    monkeypatch.setenv(DELAYS_VARIABLE, "7, 200")
    assert delays_of_environment() == HostDelays(7, 200)


@pytest.mark.parametrize("text", ["7", "a,1", "7,200,1", "7,0"])
def test_what_is_no_seed_and_cycles_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DELAYS_VARIABLE, text)
    with pytest.raises(OpenwaferError, match=r"(?i)delays"):
        delays_of_environment()
