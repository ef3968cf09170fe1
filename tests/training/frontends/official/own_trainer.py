"""The same configs on our own trainer of the present style, with the Model Zoo's models."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from openwafer.training.frontends.model_zoo.loggers import Logger
from tests.training.frontends.official.variants import PAIRS, Config

HERE: Final = __name__
TEXTS: Final = ["input_ids", "attention_mask", "labels"]
ROOTS: Final = [str(Path(__file__).parents[4]), str(Path(__file__).parents[4] / "src")]


class Figures(Logger):
    """Writes what is logged with all digits, as `fit.py` does."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        figures = {name.removeprefix("train/"): float(one) for name, one in metrics.items()}
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **figures}) + "\n")


def batches(path: str, batch_size: int) -> list[dict[str, Tensor]]:
    """Those of a file of (text, feature, token), by the names of the features."""
    data = torch.from_numpy(np.load(path))
    names = TEXTS if data.shape[1] == len(TEXTS) else PAIRS
    features = [one.contiguous() for one in data.unbind(1)]
    parts = zip(*(one.split(batch_size) for one in features), strict=True)
    return [dict(zip(names, part, strict=True)) for part in parts]


def own_config(config: Config, folder: Path, name: str) -> Config:
    """A variant's config with our logger and batches, computed in fp32."""
    init, fit = dict(config["trainer"]["init"]), dict(config["trainer"]["fit"])
    init["precision"] = init["precision"] | {"enabled": False}
    init["checkpoint"] = {"steps": 25, "checkpoint_name": "checkpoint_{step}.pt"}
    init["loggers"] = [{f"{HERE}.Figures": {"path": str(folder / f"{name}-OWN-fp32.jsonl")}}]
    kind = "pairs" if name == "t5" else "texts"
    loader = {"path": str(folder / f"{kind}.npy"), "batch_size": 8}
    for key in fit:
        fit[key] = {"data_processor": f"{HERE}.batches", **loader}
    return {"trainer": {"init": init, "fit": fit}}


def train(config: Config, folder: Path, name: str, zoo: Path) -> None:
    """Train a variant, whose weights stream, from those that `fit.py` began with on the CPU."""
    own = own_config(config, folder, name)
    weights = ["--checkpoint_path", str(folder / f"{name}-CPU-fp32.pt")]
    init = own["trainer"]["init"]
    loop, init["model_dir"] = init["loop"], str(folder / f"{name}-OWN-fp32")
    if name == "resume":
        init["loop"] = {"max_steps": 25}
        _fit(own, weights, zoo)
        init["loop"], weights = loop, []
    _fit(own, weights, zoo)


def _fit(config: Config, options: list[str], zoo: Path) -> None:
    path = Path(config["trainer"]["init"]["model_dir"]).with_suffix(".yaml")
    path.write_text(json.dumps(config))
    known = os.environ.get("PYTHONPATH")
    paths = [*ROOTS, str(zoo), *([known] if known else [])]
    command = [sys.executable, "-m", "openwafer", "cszoo", "fit", str(path)]
    machine = ["--target_device", "CPU", "--device-memory", "4MiB"]
    subprocess.run(
        [*command, *machine, *options],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )


def zoo_of(python: str) -> Path:
    """Where the Model Zoo of an environment is."""
    asked = "import cerebras.modelzoo as zoo; print(*zoo.__path__)"
    found = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    return Path(found.stdout.strip()).parents[1]
