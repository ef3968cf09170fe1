"""Suites run as their command files say."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.conformance import Outcome, SuiteOptions, run_suite, totals
from openwafer.sdk.host.final_state import FinalState, write


def program(suite: Path, name: str, commands: str) -> None:
    folder = suite / name
    folder.mkdir(parents=True)
    (folder / "commands_wse3.sh").write_text(f"set -e\n{commands}\n")


def outcomes(suite: Path, **options: object) -> dict[str, Outcome]:
    chosen = SuiteOptions("wse3", **options)  # type: ignore[arg-type]
    return {outcome.name: outcome for outcome in run_suite(suite, chosen, lambda _: None)}


def test_exit_code_0_passes_and_any_other_fails(tmp_path: Path) -> None:
    program(tmp_path, "a/good", "true")
    program(tmp_path, "a/bad", "false")
    found = outcomes(tmp_path)
    assert {name: outcome.has_passed for name, outcome in found.items()} == {
        "a/bad": False,
        "a/good": True,
    }


def test_the_reason_is_the_first_diagnostic(tmp_path: Path) -> None:
    program(tmp_path, "bad", 'echo fine; echo "error[x]: wrong"; echo more; exit 3')
    assert outcomes(tmp_path)["bad"].reason == "error[x]: wrong"


def test_the_reason_of_a_failed_script_is_its_exception(tmp_path: Path) -> None:
    program(tmp_path, "bad", 'echo Traceback; echo "AssertionError: 1 is not 2"; exit 1')
    assert outcomes(tmp_path)["bad"].reason == "AssertionError: 1 is not 2"


def test_the_suite_itself_stays_as_it_was(tmp_path: Path) -> None:
    program(tmp_path, "writer", "touch made-here")
    outcomes(tmp_path)
    assert [path.name for path in (tmp_path / "writer").iterdir()] == ["commands_wse3.sh"]


def test_command_files_of_another_name_run_when_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/commands.sh").write_text("echo an older suite")
    program(tmp_path, "new", "false")
    found = outcomes(tmp_path, script="commands.sh")
    assert {name: outcome.output for name, outcome in found.items()} == {"old": "an older suite\n"}


def test_a_program_reaches_files_beside_its_folder(tmp_path: Path) -> None:
    program(tmp_path, "reader", "cat ../shared.txt")
    (tmp_path / "shared.txt").write_text("shared\n")
    assert outcomes(tmp_path)["reader"].output == "shared\n"


def test_our_commands_come_first_on_the_path(tmp_path: Path) -> None:
    program(tmp_path, "which", "command -v cslc; command -v cs_python")
    lines = outcomes(tmp_path)["which"].output.splitlines()
    assert [Path(line).parent.name for line in lines] == ["commands", "commands"]


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    program(tmp_path, "hang", "sleep 60 | cat")
    assert outcomes(tmp_path, timeout_seconds=0.5)["hang"].reason == "out of time"


def test_cycles_come_from_the_statistics_of_the_simulation(tmp_path: Path) -> None:
    program(tmp_path, "run", "echo '{\"cycle_count\": 42}' > sim_stats.json")
    assert outcomes(tmp_path)["run"].cycles == 42


COUNTS = ("cycles", "wavelets", "landings", "elements", "tasks", "switch_changes")


def save_state(path: Path, word: int) -> None:
    memory = np.full((1, 1, 2), word, np.uint16)
    write(FinalState(memory, dict.fromkeys(COUNTS, 0), (), np.zeros((1, 1), np.int32), ()), path)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (1, ""),
        (2, "word 0 of PE (0, 0) is 0x0001 and 0x0002, one of 2 words that differ"),
    ],
)
def test_engines_that_leave_different_states_fail(tmp_path: Path, other: int, reason: str) -> None:
    to = "$OPENWAFER_FINAL_STATE"
    program(tmp_path, "run", f"mkdir -p {to}; cp $OPENWAFER_ENGINE.npz {to}/0000.npz")
    save_state(tmp_path / "run/native.npz", 1)
    save_state(tmp_path / "run/interpreter.npz", other)
    found = outcomes(tmp_path, is_compared=True)["run"]
    assert (found.has_passed, found.reason.removeprefix("native code and interpreter: ")) == (
        other == 1,
        reason,
    )


def test_a_comparison_of_nothing_fails(tmp_path: Path) -> None:
    program(tmp_path, "empty", "true")
    found = outcomes(tmp_path, is_compared=True)["empty"]
    assert found.reason == "native code and interpreter ran 0 and 0 simulations"


def test_a_filter_that_fits_no_name_says_so(tmp_path: Path) -> None:
    program(tmp_path, "one", "true")
    with pytest.raises(OpenwaferError, match="none of 1 names holds 'two'"):
        outcomes(tmp_path, name_filter="two")


def test_a_folder_without_programs_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"has no commands_wse3\.sh"):
        outcomes(tmp_path)


def test_warnings_of_overruns_are_counted(tmp_path: Path) -> None:
    program(tmp_path, "far", "echo 'warning[fabric-overrun]: one'; echo 'note[fabric-overrun]'")
    assert outcomes(tmp_path)["far"].overruns == 1


def test_totals_count_what_passed() -> None:
    good, bad = (Outcome("p", code, 1.5, None, "", "") for code in (0, 1))
    assert totals([good, bad]) == "1 of 2 passed, 3.0 s in all"


def test_totals_count_overruns() -> None:
    far = Outcome("p", 0, 1.5, None, "", "", 2)
    assert totals([far, far]) == "2 of 2 passed, 3.0 s in all, 4 warnings of overruns"
