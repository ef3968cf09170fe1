"""`cslc` and `cs_python` as a script of a public program calls them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.forked_python import with_sdk

LAYOUT = """\
param size: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0), .size = size });
  @set_tile_code(1, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(1), .size = size });
  @export_name("A", [*]f32, true);
  @export_name("scale", fn(f32)void);
}
"""
PE = """\
param memcpy_params: comptime_struct;
param size: u16;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
var A: [size]f32 = @zeros([size]f32);
var ptr: [*]f32 = &A;
const A_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{size} -> A[i] });
fn scale(factor: f32) void {
  @fmuls(A_dsd, A_dsd, factor);
  sys_mod.unblock_cmd_stream();
}
comptime {
  @export_symbol(ptr, "A");
  @export_symbol(scale);
}
"""
RUN = """\
import json, sys
import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime, MemcpyDataType, MemcpyOrder

size = int(json.load(open("out/out.json"))["params"]["size"])
options = dict(streaming=False, order=MemcpyOrder.ROW_MAJOR,
               data_type=MemcpyDataType.MEMCPY_32BIT, nonblock=False)
runner = SdkRuntime(sys.argv[1])
runner.load()
runner.run()
A = np.arange(2 * size, dtype=np.float32)
runner.memcpy_h2d(runner.get_id("A"), A, 0, 0, 2, 1, size, **options)
runner.launch("scale", np.float32(3.0), nonblock=False)
result = np.zeros(2 * size, np.float32)
runner.memcpy_d2h(result, runner.get_id("A"), 0, 0, 2, 1, size, **options)
runner.stop()
np.testing.assert_array_equal(result, 3 * A)
print("SUCCESS!")
"""
COMPILE = "--arch=wse3 --fabric-dims 9,3 --fabric-offsets=4,1 --params=size:5 --memcpy --channels=1"


def command(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return with_sdk().run_module(f"openwafer.cli.{name}", *arguments, folder=folder)


def started(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a shell starts it."""
    line = [sys.executable, "-m", f"openwafer.cli.{name}", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    for name, text in (("layout.csl", LAYOUT), ("pe.csl", PE), ("run.py", RUN)):
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def compiled(folder: Path) -> subprocess.CompletedProcess[str]:
    return started("cslc", folder, "layout.csl", *COMPILE.split(), "-o=out")


def test_a_compilation_says_that_it_succeeded(
    compiled: subprocess.CompletedProcess[str],
) -> None:
    assert (compiled.returncode, compiled.stdout) == (0, "compile successful\n"), compiled.stderr


def test_a_verbose_compilation_says_where_it_went(folder: Path) -> None:
    done = command("cslc", folder, "layout.csl", *COMPILE.split(), "-o=loud", "--verbose")
    assert done.stdout.startswith("layout.csl -> loud, ")


def test_an_option_that_changes_nothing_is_told_on_the_standard_error(folder: Path) -> None:
    done = command("cslc", folder, "layout.csl", *COMPILE.split(), "-o=quiet", "-g0")
    assert "warning[option-ignored]: -g0 has no effect here" in done.stderr


@pytest.mark.usefixtures("compiled")
def test_the_parameters_are_in_out_json(folder: Path) -> None:
    assert json.loads((folder / "out/out.json").read_text())["params"] == {"size": "5"}


@pytest.mark.usefixtures("compiled")
def test_an_unmodified_script_runs(folder: Path) -> None:
    done = started("cs_python", folder, "run.py", "out")
    assert done.stdout.endswith("SUCCESS!\n"), done.stderr
    assert done.returncode == 0


@pytest.mark.usefixtures("compiled")
def test_a_mistake_of_the_host_ends_with_its_diagnostic(folder: Path) -> None:
    (folder / "wrong.py").write_text(RUN.replace('get_id("A")', 'get_id("B")'))
    done = command("cs_python", folder, "wrong.py", "out")
    assert done.returncode != 0
    assert "the program exports no name 'B'" in done.stderr
    assert "note: at wrong.py:12\n" in done.stderr


@pytest.mark.usefixtures("compiled")
def test_a_checked_script_without_mistakes_ends_well(folder: Path) -> None:
    done = command("cs_python", folder, "--check", "run.py", "out")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_checked_script_goes_on_to_its_end_and_says_by_its_exit_code_what_was_found(
    folder: Path,
) -> None:
    body = "fn scale(factor: f32) void { A[size + @as(u16, factor)] = factor;"
    (folder / "far_layout.csl").write_text(LAYOUT.replace("pe.csl", "far.csl"))
    (folder / "far.csl").write_text(PE.replace("fn scale(factor: f32) void {", body))
    command("cslc", folder, "far_layout.csl", *COMPILE.split(), "-o=far")
    done = command("cs_python", folder, "--check", "run.py", "far")
    assert "PE (0, 0) wrote element 8 of 'A' ([5]f32)" in done.stderr
    assert (done.returncode, done.stdout) == (2, "SUCCESS!\n")


def test_a_script_finds_the_packages_of_the_active_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "active" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "frames_of_data.py").write_text("rows = 3")
    (folder / "framed.py").write_text("import frames_of_data; print(frames_of_data.rows)")
    missing = command("cs_python", folder, "framed.py")
    assert "No module named 'frames_of_data'" in missing.stderr
    assert f"{sys.executable} -m pip install frames_of_data\n" in missing.stderr
    monkeypatch.setenv("VIRTUAL_ENV", str(folder / "active"))
    assert command("cs_python", folder, "framed.py").stdout == "3\n"


def test_a_mistake_in_the_code_ends_with_its_place(folder: Path) -> None:
    (folder / "bad.csl").write_text(LAYOUT.replace("@set_rectangle(2, 1)", "@set_rectangle(w, 1)"))
    done = command("cslc", folder, "bad.csl", *COMPILE.split(), "-o=bad")
    assert done.returncode == 1
    assert "use of undeclared identifier" in done.stderr
    assert "bad.csl:4:18" in done.stderr


def test_what_the_program_prints_at_compile_time_is_shown(folder: Path) -> None:
    (folder / "printing.csl").write_text(LAYOUT.replace("pe.csl", "printing_pe.csl"))
    (folder / "printing_pe.csl").write_text(f'{PE}comptime {{ @comptime_print("size", size); }}')
    done = command("cslc", folder, "printing.csl", *COMPILE.split(), "-o", "printed")
    assert "size, 5\n" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("stage", "text"), [("ast", "@set_rectangle(2, 1)"), ("ir", "fn &scale"), ("llvm", "define")]
)
def test_every_stage_can_be_seen(folder: Path, stage: str, text: str) -> None:
    done = command("cslc", folder, "layout.csl", *COMPILE.split(), f"--emit={stage}")
    assert text in done.stdout, done.stderr


def test_a_script_that_is_not_there_is_said(folder: Path) -> None:
    done = command("cs_python", folder, "nothing.py")
    assert (done.returncode, "there is no script nothing.py" in done.stderr) == (2, True)


@pytest.mark.slow
def test_the_public_door_has_the_runtime() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import openwafer.sdk; print(openwafer.sdk.Runtime.__name__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Runtime\n"


def test_scripts_whose_runs_are_compared_draw_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "draw.py").write_text(
        "import random, numpy as np; print(random.random(), np.random.rand())"
    )
    monkeypatch.setenv("OPENWAFER_FINAL_STATE", str(tmp_path))
    drawn = [command("cs_python", tmp_path, "draw.py").stdout for _ in range(2)]
    assert len(drawn[0].split()) == 2
    assert drawn[0] == drawn[1]


TIMES = """\
import sys
import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime, MemcpyDataType, MemcpyOrder
from stamps import make_u48

options = dict(streaming=False, order=MemcpyOrder.ROW_MAJOR,
               data_type=MemcpyDataType.MEMCPY_16BIT, nonblock=False)
runner = SdkRuntime(sys.argv[1])
runner.load()
runner.run()
stamp = np.array([14313, 2, 3], np.uint32)
runner.memcpy_h2d(runner.get_id("A"), stamp, 0, 0, 1, 1, 3, **options)
words = np.zeros(3, np.uint32)
runner.memcpy_d2h(words, runner.get_id("A"), 0, 0, 1, 1, 3, **options)
runner.stop()
print(make_u48(words.astype(np.uint16)))
"""
STAMPS = """\
def make_u48(words):
    return words[0] + (words[1] << 16) + (words[2] << 32)
"""


@pytest.mark.usefixtures("compiled")
def test_a_clock_read_by_words_comes_out_as_under_numpy_1(folder: Path) -> None:
    (folder / "times.py").write_text(TIMES)
    (folder / "stamps.py").write_text(STAMPS)
    done = command("cs_python", folder, "times.py", "out")
    assert done.stdout == f"{14313 + (2 << 16) + (3 << 32)}\n", done.stderr


def test_a_mistake_of_the_script_shows_its_own_frames_alone(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("def half(x):\n    return x / 0\nhalf(3)\n")
    done = command("cs_python", tmp_path, "half.py")
    files = [line.split('"')[1] for line in done.stderr.splitlines() if "File" in line]
    assert (done.returncode, files) == (1, ["half.py", "half.py"])
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(("option", "word"), [("--check", "warning"), ("--check=wrap", "wrap")])
def test_an_option_before_the_script_chooses_the_checks(
    option: str, word: str, tmp_path: Path
) -> None:
    (tmp_path / "run.py").write_text(
        'import os, sys; print(os.environ["OPENWAFER_CHECK"], sys.argv)'
    )
    done = command("cs_python", tmp_path, option, "run.py", "--check")
    assert done.stdout == f"{word} ['run.py', '--check']\n", done.stderr
