"""A core of code that trapped says where that was, though the fabric had not come so far."""

from pathlib import Path

import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.debug import Debugger, Stand, stand_of
from openwafer.sdk.host import RuntimeOptions, core_file
from openwafer.sdk.host.journal import read
from tests.sdk.debug import trapping_run

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
}
"""
CODE = """param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var sum: u32 = 0;
task begin() void {
  for (@range(u16, 100)) |i| {
    sum += @as(u32, i);
  }
  @assert(sum == 0);
}
comptime {
  @bind_local_task(begin, @get_local_task_id(8));
  @activate(@get_local_task_id(8));
}
"""
LEAST_CYCLES = 100


@pytest.fixture(scope="module")
def stands(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stand, Stand]:
    """What the core shows, and what the debugger finds where the run failed."""
    folder = tmp_path_factory.mktemp("trap")
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(CODE, encoding="utf-8")
    program = wafer.compile(folder / "layout.csl")
    options = RuntimeOptions(log_folder=None, journal=folder / "run.journal", can_idle=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(core_file.CORE_VARIABLE, str(folder))
        with pytest.raises(OpenwaferError, match="an assertion failed"), program.run(options):
            pass
    debugger = Debugger(program.program, read(folder / "run.journal"))
    debugger.go_on()
    core = core_file.read(next(folder.glob("*.core")))
    return stand_of(core, program.program), debugger


def test_it_stands_at_the_cycle_of_its_code(stands: tuple[Stand, Stand]) -> None:
    cycles = {one.halt.cycle for one in stands}
    assert len(cycles) == 1
    (cycle,) = cycles
    assert cycle > LEAST_CYCLES
    assert all(f"stopped at cycle {cycle}: " in one.halt.text for one in stands)


def test_a_pe_that_has_not_ended_its_command_trapped_and_does_not_wait(tmp_path: Path) -> None:
    trapping_run.ran(tmp_path, Arch.WSE3)
    program = wafer.load(tmp_path / "out").program
    debugger = Debugger(program, read(tmp_path / "run.journal"))
    debugger.go_on()
    (told,) = debugger.simulator.waiting()
    assert told.startswith("PE (0, 0) trapped at ")
    assert told.endswith(f"/pe.csl:{trapping_run.line_of('@assert')} (main)")
