"""The Model Zoo's command line, data and checkpoints, as files."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from openwafer.cli import main
from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.model_zoo.samples import GptHDF5MapDataProcessor
from tests.training.frontends.zoo_runs import changed, losses, text_of, train

H5PY = "checkpoints and tokens are HDF5"


@pytest.mark.usefixtures("in_process")
def test_the_command_trains_what_a_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(losses())
    path = tmp_path / "run.yaml"
    path.write_text(text_of(changed(init__device=None)))
    options = ["--target_device", "CPU", "--model_dir", str(tmp_path), "--device-memory", "120KiB"]
    monkeypatch.setattr("sys.argv", ["openwafer", "cszoo", "fit", str(path), *options])
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv("OPENWAFER_DEVICE_MEMORY", "")
    with pytest.raises(SystemExit, match="0"):
        main()
    assert [step for step, _ in losses()] == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "checkpoint_6.pt").exists()


def test_a_run_goes_on_from_the_vendors_format(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason=H5PY)
    name: dict[str, Any] = {"init__checkpoint": {"steps": 4}}
    list(losses())
    train(tmp_path / "a", changed())
    expected = dict(losses())
    train(tmp_path / "b", changed(init__loop={"max_steps": 4}, **name))
    list(losses())
    (found,) = train(tmp_path / "b", changed(**name))
    assert dict(losses()) == {step: expected[step] for step in (5, 6)}
    assert [path.name for path in found.checkpoint.found()] == [
        "checkpoint_4.mdl",
        "checkpoint_6.mdl",
    ]


def test_tokens_are_read_in_the_order_of_their_files(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason=H5PY)
    data = torch.arange(5 * 3 * 4, dtype=torch.int32).view(5, 3, 4)
    for number, part in enumerate((data[:2], data[2:])):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("data", data=part.numpy())
    first, second = GptHDF5MapDataProcessor(str(tmp_path), batch_size=2).create_dataloader()
    assert torch.equal(first["input_ids"], data[:2, 0])
    assert torch.equal(second["labels"], data[2:4, 2])


def test_a_folder_without_tokens_is_told(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"no file \*\.h5 is in"):
        GptHDF5MapDataProcessor(str(tmp_path), batch_size=2)
