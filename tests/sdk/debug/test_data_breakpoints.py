"""A run stops where a word is changed, by whomever, and goes back to who did it last."""

import re
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.debug import Debugger, Reason
from tests.sdk.debug.written_words import NUM_WORDS, debugger_of, line_of, written
from tests.tables import case

CHANGE = re.compile(r"(\S+): (\S+) -> (\S+), by (.*)")
LINE = re.compile(r"pe\.csl:(\d+)")


def watched(debugger: Debugger, name: str) -> None:
    value = debugger.look(1).evaluator.variable(name)
    debugger.breakpoints.add_value(name, 1, value)


def seen_forwards(debugger: Debugger, name: str) -> list[tuple[float, float]]:
    """Values before and behind each stop at a data breakpoint."""
    watched(debugger, name)
    found = []
    while (halt := debugger.go_on()).reason is Reason.BREAKPOINT:
        match = CHANGE.fullmatch(halt.text)
        assert match is not None
        found.append((float(match[2]), float(match[3])))
    debugger.breakpoints.delete(1)
    return found


def seen_backwards(debugger: Debugger, name: str) -> list[int]:
    """Lines of all who have changed a word, the last one first."""
    lines = []
    value = debugger.look(1).evaluator.variable(name)
    while (told := debugger.go_to_writer(name, 1, value)).find("nothing has changed") < 0:
        match = LINE.search(told)
        assert match is not None, told
        lines.append(int(match[1]))
    return lines


def compare(seed: int, folder: Path, arch: Arch) -> None:
    program = written(seed)
    debugger = debugger_of(program, folder, arch)
    of_thread = f"got[{seed % NUM_WORDS}]"
    assert seen_forwards(debugger, of_thread) == [(0, 1 + seed % NUM_WORDS)]
    assert seen_backwards(debugger, of_thread) == [line_of("@fmovs(whole")]
    place = max(range(NUM_WORDS), key=lambda k: len(program.changes[k]))
    expected = program.changes[place]
    name = f"a[{place}]"
    assert seen_forwards(debugger, name) == [(old, new) for _, old, new in expected]
    assert seen_backwards(debugger, name) == [line for line, _, _ in reversed(expected)]


@pytest.mark.parametrize("arch", [case(arch, by_default=arch is Arch.WSE3) for arch in Arch])
def test_each_change_of_a_word_is_seen_and_its_writer_found(tmp_path: Path, arch: Arch) -> None:
    # At the end of the cycle of one of its statements a snapshot is taken.
    compare(13, tmp_path, arch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 208))
def test_writers_are_those_of_the_plain_model(tmp_path: Path, seed: int) -> None:
    compare(seed, tmp_path, list(Arch)[seed % 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def debugger(folder: Path) -> Debugger:
    return debugger_of(written(3, 2), folder, Arch.WSE3)


@pytest.fixture(autouse=True)
def _start(request: pytest.FixtureRequest) -> None:
    """Each test begins at the start, without breakpoints."""
    if "debugger" in request.fixturenames:
        debugger: Debugger = request.getfixturevalue("debugger")
        for one in list(debugger.breakpoints):
            debugger.breakpoints.delete(one.number)
        debugger.run_to_cycle(0)


def test_what_a_microthread_writes_is_seen(debugger: Debugger) -> None:
    assert seen_forwards(debugger, "got[2]") == [(0, 3)]
    assert seen_backwards(debugger, "got[2]") == [line_of("@fmovs(whole")]


def test_a_microthread_is_named(debugger: Debugger) -> None:
    watched(debugger, "got[5]")
    halt = debugger.go_on()
    assert halt.text.startswith("got[5]: 0 -> 6, by microthread ")
    assert halt.text.endswith(f"pe.csl:{line_of('@fmovs(whole')} (main)")


def test_a_condition_lets_changes_pass(debugger: Debugger) -> None:
    value = debugger.look(1).evaluator.variable("got")
    debugger.breakpoints.add_value("got", 1, value, "got[3] > 0")
    debugger.go_on()
    assert debugger.look(1).evaluator.text("got").startswith("[8]f32 { 1, 2, 3, 4, 0,")


def test_wavelets_that_arrive_stop_the_run_both_ways(debugger: Debugger) -> None:
    debugger.breakpoints.add_arrivals(0, [1])
    cycles = []
    while (halt := debugger.go_on()).reason is Reason.BREAKPOINT:
        assert halt.pe == 1
        cycles.append(halt.cycle)
    back = [debugger.go_back().cycle for _ in cycles]
    assert len(cycles) == 8
    assert back == cycles[::-1]


def test_another_breakpoint_stands_beside_one_of_arrivals(debugger: Debugger) -> None:
    debugger.breakpoints.add_arrivals(0, [1])
    debugger.breakpoints.add_arrivals(1, [1])
    debugger.breakpoints.add_function("finish", [1])
    assert debugger.go_on().breakpoints == (1,)


def test_a_task_and_a_cycle_stop_the_run_both_ways(debugger: Debugger) -> None:
    debugger.breakpoints.add_function("finish", [1])
    debugger.stop_at_cycle(20)
    halts = [debugger.go_on() for _ in range(3)]
    assert [halt.breakpoints for halt in halts] == [(2,), (1,), ()]
    assert halts[0].cycle == 20
    assert debugger.program.places[halts[1].place].line == line_of("sys.unblock_cmd_stream")
    assert [debugger.go_back().breakpoints for _ in range(3)] == [(1,), (2,), ()]


def test_a_message_is_told_and_the_run_goes_on(debugger: Debugger) -> None:
    told: list[str] = []
    debugger.tell = told.append
    debugger.breakpoints.add_function("finish", [1], log="got {got[7]}, {nothing}")
    assert debugger.go_on().reason is Reason.END
    assert len(told) == 1
    assert ": got 8, <" in told[0]
    assert "nothing here is called nothing" in told[0]


@pytest.mark.parametrize(
    ("name", "code"),
    [("me", "debug-no-address"), ("a[0] + 1", "debug-expression"), ("1", "debug-expression")],
)
def test_what_cannot_be_watched_is_refused(debugger: Debugger, name: str, code: str) -> None:
    with pytest.raises(OpenwaferError) as raised:
        watched(debugger, name)
    assert raised.value.diagnostics[0].code == code


def test_no_function_and_no_color_are_refused(debugger: Debugger) -> None:
    with pytest.raises(OpenwaferError, match="no function with code of its own is called 'main_'"):
        debugger.breakpoints.add_function("main_")
    with pytest.raises(OpenwaferError, match="there is no color 24"):
        debugger.breakpoints.add_arrivals(24)
