"""A compilation is kept, and found again as long as nothing that it read has changed."""

from pathlib import Path

import pytest

from openwafer.cli.cslc import run
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compiler import compilations
from openwafer.sdk.compiler.compilations import Compilation
from openwafer.sdk.compiler.pipeline import compile_files
from openwafer.sdk.csl.options import CompileOptions

LAYOUT = """
param n: u16;
layout {
  @comptime_print("n is", n);
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .n = n });
}
"""
PE = 'param n: u16; const other = @import_module("other.csl"); export var x: u16 = n + other.y;'
OPTIONS = CompileOptions(params=(("n", "3"),))


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENWAFER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "program" / "code"
    folder.mkdir(parents=True)
    (folder / "pe.csl").write_text(PE)
    (folder.parent / "other.csl").write_text("const y: u16 = 1;")
    (folder.parent / "layout.csl").write_text(LAYOUT.replace("pe.csl", "code/pe.csl"))
    return folder.parent / "layout.csl"


def test_what_was_compiled_is_found_again(layout: Path) -> None:
    assert compilations.find(layout, OPTIONS) is None
    made = compile_files(layout, OPTIONS)
    assert compilations.find(layout, OPTIONS) == made


def test_other_params_are_another_compilation(layout: Path) -> None:
    compile_files(layout, OPTIONS)
    assert compilations.find(layout, CompileOptions(params=(("n", "4"),))) is None


@pytest.mark.parametrize("name", ["layout.csl", "code/pe.csl", "other.csl"])
def test_a_change_of_any_file_compiles_again(layout: Path, name: str) -> None:
    compile_files(layout, OPTIONS)
    changed = layout.parent / name
    changed.write_text(changed.read_text() + "// more\n")
    assert compilations.find(layout, OPTIONS) is None


def test_a_file_that_goes_before_another_one_compiles_again(layout: Path) -> None:
    compile_files(layout, OPTIONS)
    (layout.parent / "code" / "other.csl").write_text("const y: u16 = 2;")
    assert compilations.find(layout, OPTIONS) is None


def test_the_second_command_prints_and_writes_as_the_first(
    layout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for name in ("first", "second"):
        assert run([str(layout), "--params=n:3", "-o", str(tmp_path / name)]) == 0
        files = {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*.*")
        }
        outputs.append((capsys.readouterr().out, files))
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == "n is, 3\ncompile successful\n"


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OpenwaferError, match=r"out/bin, and .*out is a file(.|\n)*-o FOLDER"):
        Compilation({}, (), ()).write(tmp_path / "out/bin")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "bin").write_text("a file")
    with pytest.raises(OpenwaferError, match=r"bin/program cannot be written: (.|\n)*-o FOLDER"):
        Compilation({"bin/program": b""}, (), ()).write(tmp_path)


def has_program(folder: Path) -> bool:
    return (folder / compilations.PROGRAM).exists()


def test_a_compilation_that_fails_leaves_no_older_program(layout: Path, tmp_path: Path) -> None:
    line = [str(layout), "--params=n:3", "-o", str(tmp_path / "out")]
    assert run(line) == 0
    assert has_program(tmp_path / "out")
    (layout.parent / "code" / "pe.csl").write_text(f"{PE} fn broken(")
    assert run(line) != 0
    assert not has_program(tmp_path / "out")


def test_a_compilation_that_cannot_be_written_leaves_no_program(
    layout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [str(layout), "--params=n:3", "-o", str(tmp_path / "out")]
    assert run(line) == 0
    (tmp_path / "out" / "memory.txt").unlink()
    (tmp_path / "out" / "memory.txt").mkdir()
    assert run(line) != 0
    assert "memory.txt cannot be written: Is a directory" in capsys.readouterr().err
    assert not has_program(tmp_path / "out")


def test_an_output_folder_with_too_long_a_name_is_refused(
    layout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(layout), "--params=n:3", "-o", str(tmp_path / ("x" * 300))]) != 0
    told = capsys.readouterr().err
    assert "xxx cannot be written: File name too long" in told
    assert "-o FOLDER" in told
