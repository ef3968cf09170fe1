"""Cycles by line add up to those of the run, and a line that is deleted takes its own away."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.door.compiled import QUIET
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host import LineCycles
from openwafer.sdk.host.line_cycles import CodeCounters
from openwafer.sdk.host.pe_code import EngineKind, Form, build_engine
from openwafer.sdk.host.symbols import HostSymbols
from tests.sdk.door.small_program import small_program
from tests.tables import some

_LAYOUT: Final = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("ints", [*]i16, true);
  @export_name("main", fn() void);
}
"""
_BEFORE: Final = """\
param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var ints = [8]i16 { 3, 1, 4, 1, 5, 9, 2, 6 };
var floats = [4]f32 { 1.5, 2.5, 3.5, 4.5 };
var ints_ptr: [*]i16 = &ints;
fn recursive(n: i16) void { if (n > 0) { ints[6] = n; recursive(n - 1); } }
fn main() void {
"""
_BEHIND: Final = """
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(ints_ptr, "ints"); @export_symbol(main); }
"""
# Nothing but its own cycles depends on a line that ends in a star.
_PROGRAMS: Final = {
    "integers": """
var t = ints[0];
t = t ^ 21845; // *
t = t & 4095; // *
t = t + 17; // *
ints[1] = t; // *""",
    "floats": """
var t = floats[0];
t = t * t; // *
t = t + 1.5; // *
t = -t; // *
floats[1] = t;""",
    "loads": """
var p = ints[0];
p = ints[@as(u16, p)]; // *
p = ints[@as(u16, p)]; // *
ints[0] = p;""",
    "divisions": """
var t = ints[0];
const d = ints[1];
t = t ^ 5;
t = t / d; // *
t = t / 10; // *
ints[0] = t; // *""",
    "branches": """
var t = ints[0];
if (t > 2) { ints[4] = 7; } // *
if (t > 3) { ints[5] = 7; } // *
if (t > 4) { ints[6] = 1; } else { ints[6] = 2; } // *
ints[0] = t; // *""",
    "loops": """
for (@range(i16, ints[7])) |i| {
  ints[3] = i; // *
  if (i > 3) {
    ints[1] = i; // *
    ints[2] = i; // *
  }
  if (i > 4) { ints[2] = i; } // *
}
ints[0] = 1; // *""",
    "long loops": """
var t = ints[0];
for (@range(i16, 100)) |i| {
  t = t ^ i;
  t = t / 3;
}
ints[0] = t; // *""",
    "calls": """
recursive(3);
recursive(1);
ints[5] = 3; // *""",
    "vectors": """
const d = @get_dsd(mem1d_dsd, .{ .base_address = &ints, .extent = 8 });
@add16(d, d, 5);
ints[1] = ints[2] + ints[3];
@map(halved, d, d);
ints[2] = ints[1] + 1;""",
}
_STARRED: Final = [
    (name, number)
    for name, text in _PROGRAMS.items()
    for number, line in enumerate(text.split("\n"))
    if line.endswith("*")
]
_MAIN: Final = 8
_HALVED: Final = "fn halved(n: i16) i16 { return n / 2; }\n"


class Counted(NamedTuple):
    """Cycles of a run, of its scalar code in the account of time, and by line, from `main` on."""

    cycles: int
    scalar: int
    lines: tuple[LineCycles, ...]


@cache
def counted(text: str, engine: EngineKind = EngineKind.NATIVE) -> Counted:
    """A run of some lines in `main`."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "layout.csl").write_text(_LAYOUT, encoding="utf-8")
        code = _HALVED + _BEFORE + text + _BEHIND
        (Path(folder) / "pe.csl").write_text(code, encoding="utf-8")
        program = wafer.compile(Path(folder) / "layout.csl")
        options = replace(QUIET, engine=engine)
        with program.run(options, account=True, line_cycles=True) as run:
            run.launch("main")
            scalar = int(run.account().of(0, 0)[_MAIN, wafer.SlotState.SCALAR])
            cycles, lines = run.cycles, run.line_cycles()
    first = _HALVED.count("\n") + _BEFORE.count("\n") + 1
    named = (
        replace(one, file=Path(one.file).name, line=one.line - first * (one.function == "main"))
        for one in lines
    )
    return Counted(cycles, scalar, tuple(named))


@pytest.mark.parametrize("name", _PROGRAMS)
def test_cycles_of_all_lines_are_those_of_the_run(name: str) -> None:
    run = counted(_PROGRAMS[name])
    # The fabric is at rest in the cycle behind.
    assert sum(one.cycles + one.operation for one in run.lines) == run.cycles - 1


@pytest.mark.parametrize("name", _PROGRAMS)
def test_cycles_of_all_lines_are_those_of_scalar_code_in_the_account_of_time(name: str) -> None:
    run = counted(_PROGRAMS[name])
    # There the loads of an operation's descriptors are scalar code, too.
    in_operations = run.scalar - sum(one.cycles for one in run.lines)
    assert (in_operations > 0) is (name == "vectors")
    assert in_operations >= 0


@pytest.mark.parametrize("name", _PROGRAMS)
def test_both_engines_count_the_same(name: str) -> None:
    assert counted(_PROGRAMS[name]) == counted(_PROGRAMS[name], EngineKind.INTERPRETER)


@pytest.mark.parametrize(("name", "number"), some(_STARRED, *_STARRED[::3]))
def test_without_a_line_a_run_takes_what_the_line_said_less(name: str, number: int) -> None:
    text = _PROGRAMS[name]
    before = counted(text)
    (of_line,) = (one for one in before.lines if (one.function, one.line) == ("main", number))
    rest = text.split("\n")
    after = counted("\n".join([*rest[:number], "", *rest[number + 1 :]]))
    assert before.cycles - after.cycles == of_line.cycles > 0


def of_function(lines: tuple[LineCycles, ...], name: str) -> list[LineCycles]:
    return [one for one in lines if one.function == name]


def test_cycles_are_summed_over_the_pes_of_a_region(tmp_path: Path) -> None:
    with small_program(tmp_path).run(line_cycles=True) as run:
        run.send("MEMCPYH2D_1", np.ones((1, 1, 4), np.float32), 0, 2)
        run.launch("add", 1.0, 2)
        run.receive("MEMCPYD2H_1", 4, np.float32, 0, 2)
    everywhere, second_row = run.line_cycles(), run.line_cycles(1)
    (echo,) = (one for one in of_function(everywhere, "echo") if one.operation)
    assert echo.executions == 4
    assert of_function(second_row, "echo") == []
    both = [one.cycles for one in of_function(everywhere, "add")]
    assert both == [2 * one.cycles for one in of_function(second_row, "add")] != []


def test_lines_are_told_of_when_the_program_has_failed(tmp_path: Path) -> None:
    run = small_program(tmp_path).run(line_cycles=True)
    run.launch("add", 1.0, 2)
    run.launch("never")
    with pytest.raises(OpenwaferError, match="unblock_cmd_stream"):
        run.close()
    assert of_function(run.line_cycles(), "add")


def test_a_run_that_does_not_count_says_how_to_ask_for_it(tmp_path: Path) -> None:
    with small_program(tmp_path).run() as run, pytest.raises(OpenwaferError) as raised:
        run.line_cycles()
    assert "does not count its cycles" in str(raised.value)
    assert "run(line_cycles=True)" in str(raised.value)


def test_a_simulation_goes_on_counting_where_another_one_was(tmp_path: Path) -> None:
    program = small_program(tmp_path).program
    code = build_engine(program, EngineKind.NATIVE, form=Form.COUNTING)
    symbols, pes = HostSymbols(program), np.arange(6)
    entries = symbols.entries(symbols.function("add"))
    machines = [Simulator(program, code.run_address, code.element_address) for _ in range(2)]
    told = [CodeCounters(program, simulator) for simulator in machines]
    for simulator in machines:
        simulator.restore(machines[0].snapshot())
        simulator.start_command(entries, (0, 1))
        simulator.run_until_command_done()
    once, twice = (of.lines(pes) for of in told)
    assert [2 * one.cycles for one in once] == [one.cycles for one in twice] != []
    machines[1].restore(machines[0].snapshot())
    assert told[1].lines(pes) == once == told[0].lines(pes)
