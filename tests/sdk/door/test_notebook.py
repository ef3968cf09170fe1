"""The notebook of the examples runs from its first cell to its last."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "wafer"


@pytest.mark.slow
def test_all_cells_of_the_notebook_run(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    execute = Path(sys.executable).with_name("jupyter-execute")  # of the extra "notebooks"
    line = [str(execute), "--inplace", "notebook.ipynb"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    cells = json.loads((tmp_path / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert code[-1]["outputs"][-1]["text"] == ["SUCCESS\n"]


def test_the_notebook_is_kept_without_results() -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
