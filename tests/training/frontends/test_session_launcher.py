"""``openwafer python`` runs a script that knows nothing of openwafer."""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.scripts.script import run_script, show_mistake
from tests.cli.command import run_command

SCRIPT = """
import sys

import torch
import cerebras.framework.torch as cbtorch
import cerebras.framework.torch.core.cb_model as cm
import cerebras.models.common.pytorch.optim.AdamW as AdamW
from cerebras.framework.torch import amp
from cerebras.framework.torch.core import modes

torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(6)))
batches = [torch.randn(4, 128) for _ in range(3)]
if cm.use_cs():
    sys.exit("before initialize")
cbtorch.initialize(cs_ip="10.0.0.1")
model = cbtorch.module(net)
loader = cbtorch.dataloader(batches)
optimizer = AdamW(model.parameters(), lr=1e-3)
scaler = amp.GradScaler(loss_scale=1.0)
with cbtorch.Session(loader, mode=modes.TRAIN) as session:
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        scaler(loss).backward()
        optimizer.step()
        session.add_step_closure(lambda loss: cm.master_print(loss.item()), args=(loss,))
    print(type(net[0].weight).__name__)
cm.save({"model": model.state_dict(), "amp": amp.state_dict()}, sys.argv[1])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.usefixtures("in_process")
def test_a_script_streams_unmodified_and_gets_its_own_arguments(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ})
    saved = script.with_name("saved.mdl")
    options = ("--device-memory", "300KiB", "--store", script.with_name("store"))
    done = run_command("python", *options, script, saved)
    assert (done.code, done.err) == (0, "")
    assert done.out.split()[-1] == "ReleasedParameter"
    state = torch.load(saved)
    assert (len(state["model"]), state["amp"]) == (12, {"loss_scale": 1.0})


def run_text(folder: Path, text: str) -> None:
    path = folder / "wrong.py"
    path.write_text(text)
    run_script([str(path)])


@pytest.mark.usefixtures("in_process")
def test_a_name_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    text = "import cerebras.framework.torch as cbtorch\ncbtorch.dataparallel(None)\n"
    there = "no attribute 'dataparallel'; it has Session, amp, core, data, dataloader, env, init"
    with pytest.raises(AttributeError, match=there):
        run_text(tmp_path, text)


@pytest.mark.usefixtures("in_process")
def test_a_name_of_a_module_in_a_module_is_told_with_those_that_are(tmp_path: Path) -> None:
    text = "from cerebras.framework.torch.core import cb_model as cm\ncm.is_here()"
    there = "'cerebras.framework.torch.core.cb_model' has no attribute 'is_here'; it has add_step"
    with pytest.raises(AttributeError, match=there):
        run_text(tmp_path, text)


@pytest.mark.usefixtures("in_process")
def test_a_package_beside_a_script_keeps_its_code_and_gets_modules(tmp_path: Path) -> None:
    (tmp_path / "modelzoo").mkdir()
    (tmp_path / "modelzoo" / "__init__.py").write_text("RELEASE = 'R_1.7.1'\n")
    estimator = "from modelzoo.common.tf.estimator.cs_estimator import CerebrasEstimator\n"
    run_text(tmp_path, f"from modelzoo import RELEASE\n{estimator}")
    main = sys.modules["__main__"]
    assert (main.RELEASE, main.CerebrasEstimator.__name__) == ("R_1.7.1", "CerebrasEstimator")


class EditableFinder:
    """As `pip install -e` writes for a package whose folder is not on the path."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._package.name:
            return None
        return spec_from_file_location(
            name, self._package / "__init__.py", submodule_search_locations=[str(self._package)]
        )


@pytest.mark.usefixtures("in_process")
def test_a_package_that_is_installed_editable_keeps_its_code(tmp_path: Path) -> None:
    package = tmp_path / "elsewhere" / "modelzoo"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("RELEASE = 'R_1.7.1'\n")
    sys.meta_path.append(EditableFinder(package))
    run_text(tmp_path, "from modelzoo import RELEASE\n")
    assert sys.modules["__main__"].RELEASE == "R_1.7.1"


@pytest.mark.usefixtures("in_process")
def test_an_import_that_is_not_there_is_told_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ImportError, match="cannot import name 'Lamb'") as told:
        run_text(tmp_path, "from cerebras.framework.torch.optim import Lamb\n")
    show_mistake(told.type, told.value, told.tb)
    shown = capsys.readouterr().err
    assert "help: cerebras.framework.torch.optim has AdamW, Optimizer, SGD" in shown
    assert "in run_as_main" not in shown


@pytest.mark.usefixtures("in_process")
def test_a_mistake_of_a_session_names_the_line_of_the_script(tmp_path: Path) -> None:
    text = "import cerebras.framework.torch as cbtorch\n\ncbtorch.dataloader([])\ncbtorch.module(1)"
    with pytest.raises(OpenwaferError, match=r"before cbtorch\.initialize") as told:
        run_text(tmp_path, text)
    assert told.value.diagnostics[0].notes == ("at wrong.py:4",)


@pytest.mark.usefixtures("in_process")
def test_a_script_that_is_not_there_is_told() -> None:
    with pytest.raises(OpenwaferError, match=r"there is no script nowhere\.py"):
        run_script(["nowhere.py"])
