"""A run stops where it is asked to, shows its values, and goes back to what it was."""

from dataclasses import replace
from pathlib import Path

import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.debug import Debugger, Halt, Reason
from openwafer.sdk.host import journal as journals
from tests.sdk.debug.running_sum import debugged, debugger_of, line_of, ran

LOOP = line_of("total += square")
RETURN = line_of("return w")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run's journal and program."""
    made = tmp_path_factory.mktemp("run")
    ran(made)
    return made


@pytest.fixture
def debugger(folder: Path) -> Debugger:
    return debugger_of(folder)


def line(debugger: Debugger, halt: Halt) -> int:
    return debugger.program.places[halt.place].line


def digest(debugger: Debugger) -> str:
    return debugger.simulator.snapshot().machine.digest()


@pytest.mark.parametrize("arch", Arch)
def test_each_pe_stops_at_a_line_each_time_that_it_comes_by(tmp_path: Path, arch: Arch) -> None:
    debugger = debugged(tmp_path, arch=arch)
    debugger.breakpoints.add("pe.csl", LOOP)
    found: list[tuple[int, str]] = []
    while (halt := debugger.go_on()).reason is Reason.BREAKPOINT:
        pes = halt.pe or 0, *halt.others
        found.extend((pe, debugger.look(pe).evaluator.text("i")) for pe in pes)
    assert sorted(found) == [(pe, f"i16 {i}") for pe in range(2) for i in range(4)]
    assert halt.reason is Reason.END


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("n", "i16 4"),
        ("total", "f32 1"),
        ("y", "[2, 2]f32 { { 0, 1 }, { 0, 0 } }"),
        ("y[0, 1]", "f32 1"),
        ("pair", "Pair .{ .a = 1, .b = 2.5 }"),
        ("pair.b * 2", "5"),
        ("at.*", "i16 1"),
        ("shade", "Color Color.green"),
        ("half", "f16 0.5"),
        ("i == 2 and !(total > 1)", "true"),
        ("&pair == at", "true"),
        ("!i == 2", "false"),
        ("false == !i", "true"),
        ("-7 / i", "-3"),
        ("-7 % i", "-1"),
        ("total / 4", "0.25"),
    ],
)
def test_values_are_shown_as_csl_writes_them(
    debugger: Debugger, expression: str, text: str
) -> None:
    debugger.breakpoints.add("pe.csl", LOOP, [0], "i == 2")
    halt = debugger.go_on()
    assert halt.pe == 0
    assert debugger.look(0).evaluator.text(expression) == text


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("nothing", "debug-expression"),
        ("y[2, 0]", "debug-expression"),
        ("pair.c", "debug-no-field"),
        ("pair", "debug-no-number"),
        ("1 +", "debug-expression"),
        ("half.*", "debug-no-pointer"),
        ("~i", "debug-expression"),
    ],
)
def test_what_cannot_be_worked_out_is_refused(
    debugger: Debugger, expression: str, code: str
) -> None:
    debugger.breakpoints.add("pe.csl", LOOP)
    debugger.go_on()
    with pytest.raises(OpenwaferError) as raised:
        debugger.look(0).evaluator.holds(expression)
    assert raised.value.diagnostics[0].code == code


def test_steps_go_into_functions_over_them_and_out(debugger: Debugger) -> None:
    debugger.breakpoints.add("pe.csl", LOOP, [0], "i == 1")
    debugger.go_on()
    into = debugger.step(0)
    assert [frame.function.name for frame in debugger.frames(0)] == ["square", "main"]
    assert debugger.look(0, 1).evaluator.text("i") == "i16 1"
    out = debugger.step(0, 1)
    debugger.step_back(0)
    assert line(debugger, debugger.step_back(0)) == line(debugger, into)
    debugger.step_back(0)
    over = debugger.step(0, 1)
    assert line(debugger, over) == line(debugger, out) == LOOP + 1


def test_steps_back_are_the_steps_forward_state_by_state(
    folder: Path,
) -> None:
    debugger = debugger_of(folder, spacing=8)
    forwards = [(debugger.step(0), digest(debugger)) for _ in range(12)]
    for halt, state in forwards[-2::-1]:
        again = debugger.step_back(0)
        assert replace(again, reason=halt.reason) == halt
        assert digest(debugger) == state
    assert debugger.step_back(0).reason is Reason.START


def test_a_rewind_finds_the_hit_before(debugger: Debugger) -> None:
    debugger.breakpoints.add("pe.csl", RETURN)
    hits = []
    while (halt := debugger.go_on()).reason is Reason.BREAKPOINT:
        hits.append((halt.pe, halt.statement, digest(debugger)))
    for pe, statement, state in reversed(hits):
        again = debugger.go_back()
        assert (again.pe, again.statement, digest(debugger)) == (pe, statement, state)
    assert debugger.go_back().reason is Reason.START
    assert debugger.go_on().statement == hits[0][1]


def test_a_cycle_is_reached_from_both_sides(debugger: Debugger) -> None:
    states: dict[int, str] = {}
    for cycle in (10, 33, 50):
        assert debugger.run_to_cycle(cycle).cycle == cycle
        states[cycle] = digest(debugger)
    for cycle in (33, 10, 50):
        debugger.run_to_cycle(cycle)
        assert digest(debugger) == states[cycle]


def test_a_run_that_hangs_stops_where_it_failed(tmp_path: Path) -> None:
    debugger = debugged(tmp_path, hangs=True)
    halt = debugger.go_on()
    assert halt.reason is Reason.FAILED
    assert "command stream" in halt.text
    assert any("PE (1, 0)" in told for told in debugger.simulator.waiting())
    debugger.breakpoints.add("pe.csl", line_of("fn hang") + 1, [1])
    assert debugger.go_back().pe == 1


def test_snapshots_stay_few(folder: Path) -> None:
    debugger = debugger_of(folder, spacing=1, most_snapshots=4)
    sizes = set()
    while debugger.step(0).reason is not Reason.END:
        sizes.add(debugger.num_snapshots)
    assert max(sizes) in (4, 5)
    assert debugger.snapshot_bytes > 0


@pytest.mark.parametrize(
    ("file", "number", "code"),
    [("other.csl", 1, "debug-no-file"), ("pe.csl", 1000, "debug-no-code")],
)
def test_no_place_to_stop_is_refused(debugger: Debugger, file: str, number: int, code: str) -> None:
    with pytest.raises(OpenwaferError) as raised:
        debugger.breakpoints.add(file, number)
    assert raised.value.diagnostics[0].code == code


def test_a_journal_of_another_program_is_refused(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "wse2"
    other.mkdir()
    ran(other, arch=Arch.WSE2)
    program = wafer.load(other / "out").program
    with pytest.raises(OpenwaferError, match="journal is of the program"):
        Debugger(program, journals.read(folder / "run.journal"))


@pytest.mark.parametrize("is_back", [False, True])
def test_a_condition_that_cannot_be_worked_out_stops_the_run_and_is_told(
    debugger: Debugger, *, is_back: bool
) -> None:
    if is_back:
        debugger.go_on()
    debugger.breakpoints.add("pe.csl", LOOP, None, "w > 0", "")
    halt = debugger.go_back() if is_back else debugger.go_on()
    assert line(debugger, halt) == LOOP
    told = "its condition 'w > 0' cannot be worked out: nothing here is called w"
    assert halt.text == f"PE ({halt.pe}, 0): {told}"


def test_a_run_before_a_value_was_set_is_the_old_one_also_further_on(folder: Path) -> None:
    debugger = debugger_of(folder, spacing=8)
    debugger.run_to_cycle(60)
    state = digest(debugger)
    debugger.run_to_cycle(30)
    debugger.set(0, "half", "8.5")
    debugger.run_to_cycle(60)
    assert digest(debugger) != state
    debugger.run_to_cycle(20)
    debugger.go_on()
    debugger.run_to_cycle(60)
    assert digest(debugger) == state


def test_a_way_back_leads_through_the_run_that_was_changed_first(folder: Path) -> None:
    debugger = debugger_of(folder, spacing=8)
    debugger.breakpoints.add("pe.csl", RETURN, [0])
    debugger.go_on()
    second = debugger.go_on()
    debugger.set(0, "half", "8.5")
    third = debugger.go_on()
    changed = debugger.look(0).evaluator.number("half")
    debugger.go_on()
    assert debugger.go_back() == third
    assert debugger.look(0).evaluator.number("half") == changed
    assert debugger.go_back() == second
    assert not debugger.has_changed


def test_a_pause_gives_a_way_back_up_and_leaves_the_run_where_it_was(folder: Path) -> None:
    debugger = debugger_of(folder, spacing=8)
    debugger.breakpoints.add("pe.csl", RETURN)
    halts = [debugger.go_on() for _ in range(4)]
    state = digest(debugger)
    debugger.pause()
    assert replace(debugger.go_back(), reason=Reason.BREAKPOINT) == halts[-1]
    assert (debugger.halt.reason, digest(debugger)) == (Reason.PAUSED, state)
    assert debugger.go_back() == halts[-2]
