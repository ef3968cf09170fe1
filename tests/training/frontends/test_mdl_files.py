"""Checkpoints of the vendor's HDF5: what is written is read, and the rest is told."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.present import cstorch
from tests.training.frontends.present_scripts import PlainScript, PresentScript, adamw
from tests.training.stream.both_loops import differing

h5py = pytest.importorskip("h5py", reason="checkpoints of the .mdl format are HDF5")

TIED = torch.arange(6.0).reshape(2, 3)
STATE: dict[str, Any] = {
    "model": OrderedDict(weight=TIED, tied=TIED, half=torch.ones(2, dtype=torch.bfloat16)),
    "optimizer": {"state": {0: {"step": torch.tensor(3)}}, "param_groups": [{"betas": (0.9, 0.5)}]},
    "global_step": 7,
    "name": "gpt",
    "nothing": None,
    "empty": {},
    "is_last": True,
}


def test_a_state_is_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "new" / "checkpoint_7.mdl"
    cstorch.save(STATE, path)
    found = cstorch.load(path)
    assert type(found["model"]) is OrderedDict
    assert found["model"]["weight"] is found["model"]["tied"]
    assert found["optimizer"]["param_groups"] == STATE["optimizer"]["param_groups"]
    assert [found[key] for key in ("global_step", "name", "nothing", "empty", "is_last")] == [
        7, "gpt", None, {}, True,
    ]  # fmt: skip
    torch.testing.assert_close(found["model"], STATE["model"])
    torch.testing.assert_close(found["optimizer"]["state"], STATE["optimizer"]["state"])


def test_the_structure_stands_there_as_torch_writes_it(tmp_path: Path) -> None:
    pytree = torch.utils._pytree  # noqa: SLF001 - the form that the format has
    cstorch.save(STATE, tmp_path / "state.mdl")
    with h5py.File(tmp_path / "state.mdl") as file:
        readable, exact = json.loads(file.attrs["__spec__"])
        names = sorted(file)
    _, spec = pytree.tree_flatten(STATE)
    assert pytree.treespec_loads(exact) == spec
    assert readable["optimizer"]["param_groups"] == [{"betas": ["*", "*"]}]
    assert names == ["model.half", "model.weight", "optimizer.state.0.step"]


def test_a_script_goes_on_from_what_it_saved(tmp_path: Path) -> None:
    path, first = tmp_path / "checkpoint.mdl", PresentScript(adamw).train(0, 2)
    cstorch.save({"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict(),
                  "schedule": first.scheduler.state_dict()}, path)  # fmt: skip
    torch.manual_seed(7)
    second, state = PresentScript(adamw), cstorch.load(path)
    for weight in second.model.parameters():
        weight.data.normal_()
    second.model.load_state_dict(state["model"])
    second.optimizer.load_state_dict(state["optimizer"])
    second.scheduler.load_state_dict(state["schedule"])
    second.train(2)
    assert differing(second.weights(), PlainScript(adamw).train().weights()) == []


def test_a_file_of_torch_is_read_too(tmp_path: Path) -> None:
    torch.save({"step": 3}, tmp_path / "state.mdl")
    assert cstorch.load(tmp_path / "state.mdl") == {"step": 3}


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    cstorch.save({"step": 3}, tmp_path / "state.mdl")
    with pytest.raises(OpenwaferError, match="would write over"):
        cstorch.save({"step": 4}, tmp_path / "state.mdl")
    assert cstorch.load(tmp_path / "state.mdl") == {"step": 3}


def changed(path: Path, name: str, value: object) -> Path:
    cstorch.save({"step": 3, "weight": TIED}, path)
    with h5py.File(path, "a") as file:
        file.attrs[name] = value
    return path


LINKED = {"weight.__metadata__": {"__TYPE__": "ObjectSerializer"}}
UNREADABLE = {
    "older": ("__version__", 0.4, "version 0.4 of a checkpoint, and this is 0.5"),
    "unfinished": ("__SUCCESS__", False, "not written to its end"),
    "object": ("weight.__metadata__", json.dumps(LINKED), "'weight', of the type ObjectSerializer"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_told(kind: str, tmp_path: Path) -> None:
    name, value, words = UNREADABLE[kind]
    with pytest.raises(OpenwaferError, match=words):
        cstorch.load(changed(tmp_path / "state.mdl", name, value))


def test_what_cannot_be_written_is_told_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"'args\.0' of the state is a Path|PosixPath"):
        cstorch.save({"args": [tmp_path]}, tmp_path / "state.mdl")
    assert list(tmp_path.iterdir()) == []
