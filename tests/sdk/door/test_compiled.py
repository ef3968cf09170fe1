"""Programs are compiled, named in short, saved and loaded."""

from pathlib import Path

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from tests.sdk.door.small_program import small_program


def test_a_program_says_shortly_what_it_is(tmp_path: Path) -> None:
    program = small_program(tmp_path)
    assert program.size == (2, 3)
    assert program.names["half"] == "[*]f16"
    assert repr(program).startswith("<layout.csl for wse3: 2 rows and 3 columns of PEs, 2 kinds")
    assert len(repr(program)) < 300
    assert len(repr(program.program)) < 300


def test_a_saved_program_runs(tmp_path: Path) -> None:
    small_program(tmp_path).save(tmp_path / "out")
    with wafer.load(tmp_path / "out").run() as run:
        run["count"] = 5
        assert (run["count"] == 5).all()


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_params_are_numbers_of_python_and_numpy(tmp_path: Path, value: int) -> None:
    assert small_program(tmp_path, width=value).size == (2, 2)


def test_params_are_no_arrays(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"params\['width'\] is a list"):
        small_program(tmp_path, width=[1])  # type: ignore[arg-type]


def test_an_unknown_generation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match="arch is 'wse4'"):
        wafer.compile(tmp_path / "layout.csl", arch="wse4")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match="no file"):
        wafer.compile(tmp_path / "layout.csl")


def test_warnings_of_the_compiler_are_pythons(tmp_path: Path) -> None:
    (tmp_path / "pe.csl").write_text("comptime {}", encoding="utf-8")
    (tmp_path / "layout.csl").write_text(
        'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{ .unused = 1 }); }',
        encoding="utf-8",
    )
    with pytest.warns(wafer.CompileWarning, match="unused"):
        wafer.compile(tmp_path / "layout.csl")


def test_what_the_door_has_not_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compiles'"):
        _ = wafer.compiles
