"""What a PE's machine is at is seen where a run stands, and where its wavelets came from."""

import io

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.debug import Console, Debugger
from tests.sdk.debug.written_words import debugger_of, line_of, written
from tests.tables import case

SENT = [f"{bits:#010x}" for bits in np.arange(1, 9, dtype=np.float32).view(np.uint32)]
FIRST_TAKEN = "got[0] > 0"


@pytest.fixture(scope="module", params=[Arch.WSE3, case(Arch.WSE2, by_default=False)])
def debugger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Debugger:
    """Of a run in which PE (0, 0) sends eight numbers to PE (1, 0)."""
    return debugger_of(written(3, 2), tmp_path_factory.mktemp("run"), request.param)


@pytest.fixture
def console(debugger: Debugger) -> Console:
    """Looks at PE (1, 0), where the first number has come."""
    for one in list(debugger.breakpoints):
        debugger.breakpoints.delete(one.number)
    debugger.run_to_cycle(0)
    found = Console(debugger, io.StringIO(), io.StringIO())
    answer(found, "pe 1 0")
    answer(found, f"watch got if {FIRST_TAKEN}")
    answer(found, "continue")
    return found


def answer(console: Console, command: str) -> str:
    """What the console says to a command."""
    console.stdout = io.StringIO()
    console.onecmd(console.precmd(command))
    return console.stdout.getvalue()


def test_routes_say_where_a_color_goes(console: Console) -> None:
    assert "color 0: west -> ramp" in answer(console, "routes")
    answer(console, "pe 0 0")
    assert "color 0: ramp -> east" in answer(console, "routes")


def test_a_variable_may_be_called_by_a_keyword_of_another_language(console: Console) -> None:
    assert answer(console, "print from").startswith("fabin_dsd fabin_dsd, extent ")


def test_queues_have_their_wavelets_in_order(console: Console, debugger: Debugger) -> None:
    # Words are in the sender's queue three cycles before PE (1, 0) has the first one.
    debugger.run_to_cycle(debugger.simulator.cycle - 3)
    answer(console, "pe 0 0")
    (own,) = (line for line in answer(console, "queues").splitlines() if line.startswith("output"))
    assert own.startswith("output queue 2 of color 0: ")
    held = own.rpartition(": ")[2].split(", ")
    assert held == SENT[SENT.index(held[0]) :][: len(held)]
    assert int(own.split()[6]) == len(held)


def test_operations_say_what_they_wait_for(console: Console) -> None:
    told = answer(console, "operations")
    assert "@fmovs has 7 of 8 elements left" in told
    assert f"pe.csl:{line_of('@fmovs(whole')} (main)" in told


def test_tasks_are_active_once_they_are_to_run(console: Console) -> None:
    assert "local task 'finish' (id 10)\n" in answer(console, "tasks")
    answer(console, "break finish at 1 0")
    while "(finish)" not in answer(console, "continue"):
        pass
    answer(console, "back")
    assert "blocked" not in answer(console, "tasks")


def test_memory_is_shown_from_an_address_on(console: Console) -> None:
    answer(console, "pe 0 0")
    words = answer(console, "memory &sent, 4").split()
    assert words[1:] == ["0000", "3f80", "0000", "4000"]
    assert answer(console, f"memory {words[0][:-1]}, 4").split() == words
    assert "do not lie in a PE's memory" in answer(console, "memory 98300, 3")


def test_code_is_that_of_the_present_place(console: Console) -> None:
    answer(console, "break finish at 1 0")
    while "(finish)" not in answer(console, "continue"):
        pass
    shown = answer(console, "code")
    (here,) = {line.rpartition(":")[2] for line in shown.splitlines() if line.startswith(">")}
    assert int(here) == line_of("sys.unblock_cmd_stream")


def test_a_wavelet_is_followed_to_the_statement_that_sent_it(console: Console) -> None:
    told = answer(console, "came-from 0").splitlines()
    newest = SENT.index(told[0].split()[2].rstrip(","))
    assert newest >= 0
    assert told[0].endswith(f"the last of {newest + 1} wavelet{'s' * (newest > 0)} that came")
    assert told[1].strip().startswith("PE (0, 0) sent it, at cycle ")
    assert told[1].endswith(f"/pe.csl:{line_of('@fmovs(to')} (main)")
    assert told[2].startswith("  by the routers of (0, 0) at ")
    assert answer(console, "came-from").splitlines()[-len(told) :] == told


def test_a_wavelet_is_named_by_its_number_among_those_that_came(console: Console) -> None:
    num = int(answer(console, "came-from 0").split(" wavelet")[0].split()[-1])
    for number in range(1, num + 1):
        told = answer(console, f"came-from 0 {number}")
        assert told.startswith(f"color 0: {SENT[number - 1]}, number {number} of {num} wavelet")
    assert f"there is no number {num + 1} of color 0" in answer(console, f"came-from 0 {num + 1}")


def test_a_color_that_there_is_not_is_told(console: Console) -> None:
    told = "there is no color 99: a wavelet has one of 0 to 23"
    assert told in answer(console, "came-from 99")
    assert "'0 1 2' is no color" in answer(console, "came-from 0 1 2")


def test_what_has_not_come_has_no_origin(console: Console, debugger: Debugger) -> None:
    assert "no wavelet of color 7 has come to PE (1, 0)" in answer(console, "came-from 7")
    debugger.run_to_cycle(0)
    assert answer(console, "came-from") == "no wavelet has come to PE (1, 0) yet\n"


def test_wavelets_of_a_run_that_was_changed_are_not_followed(
    console: Console, debugger: Debugger
) -> None:
    answer(console, "set a[0] = 5")
    with pytest.raises(OpenwaferError, match="a value was set at cycle"):
        debugger.came_from(1)
    answer(console, "cycle 1")
    assert debugger.came_from(1) == []


def test_the_focus_is_what_was_named_and_what_stopped(console: Console) -> None:
    assert answer(console, "focus add 0 0").startswith("*PE (1, 0): ")
    assert "PE (0, 0): " in answer(console, "focus")
    assert "PE (0, 0)" not in answer(console, "focus remove 0 0")
    assert "this is no focus" in answer(console, "focus add 0")
