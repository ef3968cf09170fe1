"""Scripts are profiled from the command line, also those that fail; mistakes are told."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import journal as journals
from openwafer.sdk.profile.recorded import profile_of_journal
from openwafer.sdk.profile.tables import by_line
from tests.cli.command import run_command
from tests.sdk.busy import interrupt_soon
from tests.sdk.door.small_program import small_program
from tests.sdk.profile.two_commands import CODE, two_commands

SCRIPT = """
import sys
import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime
for functions in sys.argv[2:]:
    runtime = SdkRuntime(sys.argv[1])
    runtime.load()
    runtime.run()
    for function in functions.split(","):
        runtime.launch(function, *[np.float32(2)] * (function == "scale"), nonblock=False)
    runtime.stop()
print("SUCCESS!")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program in `out`, a script, and the journal of a run."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "run.py").write_text(SCRIPT, encoding="utf-8")
    program = two_commands(folder)
    program.save(folder / "out")
    options = wafer.RuntimeOptions(log_folder=None, journal=folder / "run.journal")
    with program.run(options) as run:
        run.launch("scale", 2.0)
    return folder


def test_a_script_runs_once_and_its_profile_is_shown_and_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    files = "--write", "p.json", "--write", "p.txt"
    done = run_command("csl", "profile", "out", *files, "--", "run.py", "out", "scale")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("884 cycles on 1 by 1 PEs of wse3\n")
    assert done.out.endswith("written: p.json\nwritten: p.txt\n")
    assert wafer.profile_text(wafer.read_profile("p.json")) == Path("p.txt").read_text()
    assert Path("p.txt").read_text() in done.out


@pytest.mark.slow
def test_a_script_that_fails_is_profiled_up_to_there(folder: Path) -> None:
    words = [sys.executable, "-m", "openwafer.cli.cs_python", "--profile=failed.json"]
    command = [*words, "run.py", "out", "scale", "scale,never,scale"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    profile = wafer.read_profile(folder / "failed.json")
    assert done.returncode != 0
    assert "unblock_cmd_stream" in done.stderr
    assert done.stdout.startswith("run 2 of 2; --run N shows another one\n")
    assert "unblock_cmd_stream" in str(profile.failure)
    assert "the run failed in the last of these cycles" in done.stdout


@pytest.mark.parametrize(
    ("body", "told"),
    [("", "nothing moves any more at cycle"), ("@assert(A[0] > 1.0);", "an assertion failed")],
)
def test_a_program_that_fails_has_its_path_up_to_there(
    tmp_path: Path, body: str, told: str
) -> None:
    code = CODE.replace("fn never() void {}", f"fn never() void {{ {body} }}")
    program, journal = two_commands(tmp_path, code), tmp_path / "failed.journal"
    program.save(tmp_path / "out")
    run = program.run(wafer.RuntimeOptions(log_folder=None, journal=journal))
    run.launch("scale", 2.0)
    run.launch("never")
    with pytest.raises(OpenwaferError, match=told):
        run.close()
    done = run_command("csl", "profile", tmp_path / "out", "--journal", journal, "--path")
    assert told in done.out.splitlines()[2]
    assert "\nCritical path, " in done.out
    assert "  scale  " in done.out


def test_a_script_that_a_signal_ends_has_the_exit_code_of_a_shell(folder: Path) -> None:
    script = folder / "killed.py"
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", encoding="utf-8")
    assert run_command("csl", "profile", folder / "out", "--", script).code == 128 + 9


def test_the_run_of_a_journal_is_profiled(folder: Path) -> None:
    done = run_command("csl", "profile", folder / "out", "--journal", folder / "run.journal")
    assert done.out.startswith("884 cycles on 1 by 1 PEs of wse3\n")


def test_a_rectangle_is_looked_at_alone(folder: Path) -> None:
    words = "csl", "profile", folder / "out", "--journal", folder / "run.journal", "--rectangle"
    told = run_command(*words, 0, 0, 1, 1).out
    assert "what follows is of" not in told
    assert "needs sizes from 1 on" in run_command(*words, 0, 0, 0, 1).err
    assert "the region of 2 by 1 PEs at (0, 0) is not inside" in run_command(*words, 0, 0, 2, 1).err


def test_a_run_that_was_interrupted_is_profiled_up_to_there(folder: Path) -> None:
    program, journal = wafer.load(folder / "out"), folder / "interrupted.journal"
    run = program.run(wafer.RuntimeOptions(log_folder=None, journal=journal), profile=True)
    interrupt = partial(signal.raise_signal, signal.SIGINT)
    run._runtime.look_at(500, lambda _simulator: interrupt())  # noqa: SLF001
    run.launch("scale", 2.0)
    with pytest.raises(KeyboardInterrupt):
        assert run.cycles
    profile = run.profile()
    assert profile.cycles == 500
    assert "the user interrupted the run at cycle 500" in wafer.profile_text(profile)
    assert profile_of_journal(program.program, journals.read(journal)) == profile


@pytest.mark.slow  # A replay runs the loop to its limit, some seconds.
def test_code_that_was_interrupted_in_an_endless_loop_names_the_loop(tmp_path: Path) -> None:
    code = CODE.replace("fn never() void {}", "fn never() void { while (true) { A[1] += 1.0; } }")
    program, journal = two_commands(tmp_path, code), tmp_path / "interrupted.journal"
    run = program.run(wafer.RuntimeOptions(log_folder=None, journal=journal), profile=True)
    run.launch("never")
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        assert run.cycles
    for profile in (run.profile(), profile_of_journal(program.program, journals.read(journal))):
        assert "the user interrupted the run" in str(profile.failure)
        assert by_line(profile)[0].function == "never"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "error[profile-of-what]"),
        (("--write", "p.pdf", "--", "run.py"), "end it with .speedscope.json, .json"),
        (("--journal", "none.journal"), "error[journal-missing]"),
    ],
)
def test_what_cannot_be_profiled_is_told(folder: Path, words: tuple[str, ...], told: str) -> None:
    done = run_command("csl", "profile", folder / "out", *words)
    assert done.code == 2
    assert told in done.err


def test_a_script_without_the_program_that_is_asked_for_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENWAFER_JOURNAL", str(tmp_path))
    with two_commands(folder).run():
        pass
    (tmp_path / "other").mkdir()
    other = small_program(tmp_path / "other", 1, 1).program
    ((program, _),) = journals.runs_in(tmp_path)
    assert program.images[0].name.startswith("pe.csl")
    with pytest.raises(OpenwaferError, match="the script has run other programs"):
        journals.runs_in(tmp_path, other)
    with pytest.raises(OpenwaferError, match="has run no program"):
        journals.runs_in(folder / "out")
