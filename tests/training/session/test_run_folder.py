"""A run folder is made once and used by one process at a time."""

import os
import signal
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session.run_folder import RunFolder


def test_a_folder_with_a_run_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.create()
    folder.config.write_text("steps: 1\n")
    with pytest.raises(OpenwaferError, match=r"there is a run in .*/a already\n.*openwafer resume"):
        folder.create()


def test_a_folder_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpenwaferError, match=r"cannot make .*file/run: Not a directory"):
        RunFolder(tmp_path / "file" / "run").create()


def test_a_folder_without_a_run_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"there is no run in .*: it has no config.yaml"):
        RunFolder(tmp_path).require_run()


def test_a_run_is_refused_while_it_is_in_use(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    message = rf"run-locked\]: the run .* is in use by process {os.getpid()}\n.*help: wait until"
    with run.locked(), pytest.raises(OpenwaferError, match=message), run.locked():
        pass


def test_a_forked_process_does_not_keep_the_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked():
        child = os.fork()
        if not child:
            signal.pause()
    try:
        with RunFolder(tmp_path).locked():
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_run_is_free_again_after_its_process(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder(tmp_path).locked():
            pass
    assert (tmp_path / "lock").exists()


def test_a_folder_that_cannot_be_locked_is_told(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    message = r"cannot lock .*: .*Is a directory.*\n.*help: copy the run to a folder that may be"
    with pytest.raises(OpenwaferError, match=message), RunFolder(tmp_path).locked():
        pass


def test_recommended_commands_quote_a_path_with_spaces(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "my run")
    folder.create()
    folder.config.touch()
    with pytest.raises(OpenwaferError, match=r"openwafer resume '/.*/my run';"):
        folder.create()
