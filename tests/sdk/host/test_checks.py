"""Runs that look for mistakes of their programs: who is told, and how the run ends."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import Check, DataType, Region, Runtime, RuntimeOptions
from openwafer.sdk.host.checks import check_of_environment
from openwafer.sdk.program.program import Program
from tests.sdk.door.small_program import small_program
from tests.sdk.library import rig

STORES = """
var places = @zeros([2]i16);
var far: u16 = 5;
fn store(values: [*]i16) void { values[far] = 1; }
fn main() void { store(&places); finish(); }
"""


@pytest.fixture(scope="module")
def storing() -> Program:
    return rig.compile_source(STORES)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return small_program(tmp_path_factory.mktemp("program")).program


def started(program: Program, check: Check | None = Check.WARNING) -> Runtime:
    runtime = Runtime(program, RuntimeOptions(log_folder=None, check=check))
    runtime.load()
    runtime.run()
    return runtime


def stopped(program: Program, check: Check | None = Check.WARNING) -> Runtime:
    runtime = started(program, check)
    runtime.launch("main")
    runtime.stop()
    return runtime


def found_in_copies(program: Program, name: str, *lengths: int, bits: int = 32) -> list[str]:
    runtime = started(program)
    kind = DataType.BITS_32 if bits == 32 else DataType.BITS_16
    for length in lengths:
        region = Region(0, 0, 1, 1, length)
        values = np.zeros(region.shape, np.uint32)
        runtime.copy_to_device(runtime.get_id(name), values, region, kind)
    runtime.stop()
    return [f"{one.severity}: {one.message}" for one in runtime.findings()]


def test_warnings_are_told_once_and_the_run_goes_on(
    storing: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = stopped(storing).findings()
    assert found.message == "PE (0, 0) wrote element 5 of 'places' ([2]i16), where no variable lies"
    assert capsys.readouterr().err.count("warning[fabric-bounds]") == 1


def test_errors_are_raised_when_the_run_stops(storing: Program) -> None:
    with pytest.raises(
        OpenwaferError, match=r"error\[fabric-bounds\]: PE \(0, 0\) wrote element 5"
    ):
        stopped(storing, Check.ERROR)


def test_without_checks_nothing_is_found(storing: Program) -> None:
    assert stopped(storing, Check.OFF).findings() == ()


def test_the_environment_turns_checks_on(storing: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_CHECK", "error")
    with pytest.raises(OpenwaferError, match="wrote element 5 of 'places'"):
        stopped(storing, None)


def test_a_word_that_is_none_of_the_three_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_CHECK", "1")
    with pytest.raises(OpenwaferError, match="'1', and not one of off, warning, error"):
        check_of_environment()


def test_the_log_has_what_was_found(storing: Program, tmp_path: Path) -> None:
    runtime = Runtime(storing, RuntimeOptions(log_folder=tmp_path, check=Check.WARNING))
    runtime.load()
    runtime.run()
    runtime.launch("main")
    runtime.stop()
    assert "warning[fabric-bounds]: PE (0, 0)" in (tmp_path / "sim.log").read_text()


def test_a_copy_of_narrower_elements_is_a_mistake(copied: Program) -> None:
    assert found_in_copies(copied, "single", 3, 6, bits=16)[0] == (
        "warning: a copy of 'single' moves elements of 16 bits, and its type [*]f32 has elements "
        "of 32"
    )


def test_a_copy_of_a_part_is_a_note(copied: Program) -> None:
    (found,) = found_in_copies(copied, "single", 2)
    assert found.startswith("note: copies of 'single' take 2 of its 3 elements of 32 bits on PE")


def test_a_part_is_no_matter_where_another_copy_takes_all(copied: Program) -> None:
    assert found_in_copies(copied, "single", 2, 3) == []


def test_notes_are_no_errors(copied: Program) -> None:
    runtime = started(copied, Check.ERROR)
    region = Region(0, 0, 1, 1, 2)
    values = np.zeros(region.shape, np.uint32)
    runtime.copy_to_device(runtime.get_id("single"), values, region)
    runtime.stop()
    assert len(runtime.findings()) == 1
