"""The script of the guide's page runs as it stands there, on a text that every Python has."""

import argparse
import re
from pathlib import Path

import pytest
import torch

from openwafer.training.frontends.scripts.script import run_script
from tests.wings import TESTS

PAGE = TESTS.parent / "docs/guide/session-style.md"


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_the_script_of_the_page_learns_and_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    script, saved = tmp_path / "train.py", tmp_path / "trained.mdl"
    script.write_text(blocks[0])
    monkeypatch.setenv("OPENWAFER_DEVICE_MEMORY", "8MiB")
    run_script([str(script), "--text", argparse.__file__, "--checkpoint", str(saved)])
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 30
    assert losses[0] > 5.0
    assert losses[-1] < 3.5
    assert len(torch.load(saved)["optimizer"]["state"]) == len(torch.load(saved)["model"])
