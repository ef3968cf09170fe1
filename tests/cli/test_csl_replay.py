"""``openwafer csl replay`` does a run again, and says whether it is the same one."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.host import journal as journals
from openwafer.sdk.program import FILE_NAME, file
from tests.cli.command import run_command
from tests.sdk.host.hand_built import PROGRAM


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The program's folder; the journal of a run of it lies beside."""
    folder = tmp_path / "out"
    (folder / "bin").mkdir(parents=True)
    file.write(PROGRAM, folder / "bin" / FILE_NAME)
    runtime = Runtime(PROGRAM, RuntimeOptions(log_folder=None, journal=tmp_path / "run.journal"))
    runtime.load()
    runtime.run()
    runtime.launch("scale", 2.0)
    runtime.wait()
    runtime.stop()
    return folder


@pytest.fixture
def journal(out: Path) -> Path:
    return out.with_name("run.journal")


def test_the_same_run_is_told_of_with_its_end(out: Path, journal: Path) -> None:
    done = run_command("csl", "replay", journal, out)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("the same run: cycle ")
    assert " 3 of 3 operations done, state " in done.out


def test_a_run_is_done_up_to_a_cycle(out: Path, journal: Path) -> None:
    done = run_command("csl", "replay", journal, out, "--until", 3)
    assert done.out.startswith("the same run up to here: cycle 3, 1 of 3 operations done, state ")


def test_a_cycle_behind_the_end_is_told_of(out: Path, journal: Path) -> None:
    done = run_command("csl", "replay", journal, out, "--until", 1_000_000)
    assert "it ended before cycle 1,000,000\n" in done.out


def test_another_end_of_an_operation_is_a_difference(out: Path, journal: Path) -> None:
    kept = journals.read(journal)
    kept.entries[1] = replace(kept.entries[1], cycle=99)
    journals.write(kept, journal)
    done = run_command("csl", "replay", journal, out)
    assert done.code == 1
    assert "operation 1 (Wait) began at cycle 99 in the run, and" in done.err


def test_a_failure_and_an_interrupt_are_parts_of_a_run(out: Path, journal: Path) -> None:
    runtime = Runtime(PROGRAM, RuntimeOptions(log_folder=None, journal=journal))
    runtime.load()
    runtime.run()
    with pytest.raises(OpenwaferError, match="fabric-deadlock"):
        runtime.receive(lambda _words: None, 6, Region(0, 0, 2, 2, 2))
    runtime.look_at(runtime.cycle, lambda _simulator: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        runtime.wait()
    done = run_command("csl", "replay", journal, out)
    assert "operation 0 (Receive): error" in done.out
    told = f"the user interrupted the run at cycle {runtime.cycle}; the journal ends there"
    assert told in done.out


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-9], "is damaged"),
        (lambda data: data.replace(b'"version":1', b'"version":99', 1), "version 99"),
    ],
)
def test_a_journal_that_was_cut_or_is_of_another_version_is_a_mistake(
    out: Path, journal: Path, damage: Callable[[bytes], bytes], told: str
) -> None:
    journal.write_bytes(damage(journal.read_bytes()))
    done = run_command("csl", "replay", journal, out)
    assert (done.code, told in done.err) == (2, True)


def test_a_foreign_program_is_a_mistake(out: Path, journal: Path) -> None:
    file.write(replace(PROGRAM, channels=2), out / "bin" / FILE_NAME)
    done = run_command("csl", "replay", journal, out)
    assert done.code == 2
    assert "error[journal-of-other-program]" in done.err
