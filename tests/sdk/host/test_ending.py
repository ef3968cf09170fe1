"""A script that ends without stopping its run hears the same as one that stops it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from openwafer.sdk.compat.sdkruntimepybind import SdkRuntime
from tests.sdk.door.small_program import small_program
from tests.sdk.forked_python import with_sdk

DEADLOCK = "PE (0, 0) is idle and has not called unblock_cmd_stream"
DOOR = 'import openwafer.sdk as w\nrun = w.compile("layout.csl", params={params}).run(check=True)\n'
VENDOR = """
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime
runner = SdkRuntime("out"); runner.load(); runner.run()
"""
LONG_COPY = 'runner.memcpy_h2d(runner.get_id("single"), numpy.ones(6, "f4"), 0, 0, 1, 1, 6)'
NEVER = 'run.launch("never"); print("end")'
Run = Callable[[Path], subprocess.CompletedProcess[str]]


def python(folder: Path) -> subprocess.CompletedProcess[str]:
    return with_sdk().run_script("run.py", folder=folder)


def cs_python(folder: Path) -> subprocess.CompletedProcess[str]:
    return with_sdk().run_module("openwafer.cli.cs_python", "--check", "run.py", folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    small_program(folder).save(folder / "out")
    return folder


def script(folder: Path, command: Run, text: str) -> subprocess.CompletedProcess[str]:
    text = text.replace("{params}", '{"width": 3, "height": 2}')
    (folder / "run.py").write_text(text, encoding="utf-8")
    return command(folder)


def test_a_script_whose_run_cannot_end_fails(folder: Path) -> None:
    done = script(folder, python, DOOR + NEVER)
    assert (done.returncode, done.stdout) == (1, "end\n")
    assert "error[fabric-deadlock]" in done.stderr
    assert DEADLOCK in done.stderr
    assert "the script never stopped the run" in done.stderr


def test_what_is_queued_is_carried_out_before_a_run_is_judged(folder: Path) -> None:
    done = script(folder, cs_python, VENDOR + 'runner.launch("never", nonblock=True)')
    assert done.returncode == 2
    assert DEADLOCK in done.stderr


def test_a_script_that_ends_well_without_stop_ends_with_0(folder: Path) -> None:
    done = script(folder, python, DOOR + 'run["single"] = 1; run.launch("add", 1.0, 2)')
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_that_fails_is_told_of_its_run_before_its_own_mistake(folder: Path) -> None:
    done = script(folder, cs_python, f"import numpy\n{VENDOR}{LONG_COPY}; 1 / 0")
    assert done.returncode == 1
    assert 0 < done.stderr.find("takes 6 elements") < done.stderr.find("ZeroDivisionError")


def test_a_run_that_is_dropped_is_judged_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    runner = SdkRuntime("out")
    runner.load()
    runner.run()
    runner.launch("never")
    del runner
    assert DEADLOCK in capsys.readouterr().err
