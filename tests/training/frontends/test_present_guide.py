"""The script of the guide's page runs as it stands there, on a text that every Python has."""

import argparse
import re
from pathlib import Path

import pytest

from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.scripts.script import run_script
from tests.wings import TESTS

PAGE = TESTS.parent / "docs/guide/present-style.md"


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("saves", [False, True])
def test_the_script_of_the_page_learns_and_saves(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    saves: bool,
) -> None:
    if saves:
        pytest.importorskip("h5py", reason="checkpoints of the .mdl format are HDF5")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    script, options = tmp_path / "train.py", ["--folder", str(tmp_path)] if saves else []
    script.write_text(blocks[0])
    monkeypatch.setenv("OPENWAFER_DEVICE_MEMORY", "8MiB")
    run_script([str(script), "--text", argparse.__file__, *options])
    shown = capsys.readouterr()
    losses = [float(line.split()[-1]) for line in shown.out.splitlines()]
    assert (len(losses), shown.err) == (30, "")
    assert losses[0] > 5.0
    assert losses[-1] < 3.5
    assert not saves or cstorch.load(tmp_path / "checkpoint_30.mdl")["global_step"] == 30
