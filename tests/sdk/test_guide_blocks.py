"""What the guide shows in Python runs, block after block, on a program as its page describes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openwafer.sdk as wafer

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
FILE = re.compile(r"```csl\n(// (\S+)\n.*?)```", re.DOTALL)
SCALE = """
param memcpy_params;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var A: [4]f32;
var A_ptr: [*]f32 = &A;
fn scale(factor: f32) void {
  for (@range(u16, 4)) |i| { A[i] *= factor; }
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(A_ptr, "A"); @export_symbol(scale); }
"""
SCALE_LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("A", [*]f32, true);
  @export_name("scale", fn(f32)void);
}
"""


def run_blocks(page: Path, **names: Any) -> dict[str, Any]:
    """Run what the page shows of the door; return all names that it leaves."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    first = next(i for i, block in enumerate(blocks) if "openwafer.sdk" in block)
    for block in blocks[first:]:
        exec(compile(block, str(page), "exec"), names)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that blocks run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_tutorial(folder: Path) -> None:
    """Write the product of the tutorial, whose params have values where nobody gives them."""
    text = (GUIDE / "wafer-tutorial.md").read_text(encoding="utf-8")
    for content, name in FILE.findall(text):
        rows_given = content.replace("param rows: u16;", "param rows: u16 = 8;")
        all_given = rows_given.replace("param cols: u16;", "param cols: u16 = 6;")
        (folder / name).write_text(all_given, encoding="utf-8")


def test_the_page_on_python_runs_as_it_stands(folder: Path) -> None:
    write_tutorial(folder)
    saxpy = ROOT / "examples" / "wafer" / "saxpy.csl"
    (folder / "saxpy.csl").write_text(saxpy.read_text(encoding="utf-8"), encoding="utf-8")
    blocks = np.ones((4, 4, 48), np.float32)
    left = run_blocks(GUIDE / "wafer-python.md", blocks=blocks, parts=np.ones((4, 6)))
    np.testing.assert_array_equal(left["y"], np.full((4, 8), 24, np.float32))
    np.testing.assert_allclose(left["called"].arrays[1], 1 + 2 * left["x"], rtol=1e-6)


def test_the_first_page_runs_as_it_stands(folder: Path) -> None:
    write_tutorial(folder)
    left = run_blocks(ROOT / "README.md", blocks=np.ones((4, 4, 48), np.float32))
    assert left["y"].shape == (4, 4, 8)


def test_the_page_on_commands_scales_a_copy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "layout.csl").write_text(SCALE_LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(SCALE, encoding="utf-8")
    wafer.compile("layout.csl").save("out")
    run_blocks(GUIDE / "wafer-commands.md")
    assert "[[[3. 3. 3. 3.]]]" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_on_kernels_runs_as_it_stands() -> None:
    left = run_blocks(GUIDE / "kernels.md")
    assert left["plan"].column_tree == left["kernels"].Tree("two-phase", 8)
    np.testing.assert_array_equal(left["total"].values, np.full(100, 12, np.float32))


@pytest.mark.slow
def test_the_page_on_layers_at_rest_runs_as_it_stands() -> None:
    left = run_blocks(GUIDE / "layers-at-rest.md")
    assert left["gradients"].scales.shape == (12,)
