"""The script of the guide's page runs as it stands there, on a text that every Python has."""

import argparse
import ast
import re
from pathlib import Path

import pytest

from openwafer.training.frontends.scripts.script import run_script
from tests.wings import TESTS

PAGE = TESTS.parent / "docs/guide/estimator-style.md"


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_the_script_of_the_page_learns_and_evaluates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    script = tmp_path / "run.py"
    script.write_text(blocks[0])
    monkeypatch.setenv("OPENWAFER_DEVICE_MEMORY", "8MiB")
    run_script([str(script), "--text", argparse.__file__, "--model_dir", str(tmp_path / "trained")])
    found = ast.literal_eval(capsys.readouterr().out)
    assert found["global_step"] == 30
    assert found["loss"] < 3.5
    assert found["accuracy"] > 0.1
    kept = {path.stem for path in (tmp_path / "trained").glob("*.safetensors")}
    assert kept == {f"model.ckpt-{step}" for step in (0, 10, 20, 30)}
