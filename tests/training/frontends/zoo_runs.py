"""A small run of the Model Zoo's trainer: its YAML, and the model and batches that it names."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml
from torch import Tensor, nn

from openwafer.source import SourceText
from openwafer.training.frontends.model_zoo.hooks import Callback
from openwafer.training.frontends.model_zoo.loggers import Logger
from openwafer.training.frontends.model_zoo.recipe import parse_phases, run_phases
from openwafer.training.frontends.model_zoo.trainer import Trainer, summarize_scalar

HERE = __name__
WIDTH = 64


class Net(nn.Module):
    """Says its loss; drops some of what it computes."""

    def __init__(self, hidden_size: int, num_layers: int = 4) -> None:
        super().__init__()
        sizes = [(hidden_size, hidden_size)] * num_layers
        self.layers = nn.ModuleList(nn.Linear(*size) for size in sizes)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, batch: Tensor) -> Tensor:
        x = batch
        for layer in self.layers:
            x = x + nn.functional.dropout(torch.tanh(layer(x)), 0.1, self.training)
        loss: Tensor = (self.norm(x) - batch.flip(-1)).square().mean()
        return loss


@dataclass
class Scaled:
    """How a model of the Model Zoo says what multiplies learning rates."""

    scale: float
    end: str

    def param_filter(self, name: str, _: nn.Parameter) -> bool:
        return name.endswith(self.end)


class Widened(Net):
    """By muP; tells the loggers of the norm's first weight."""

    lr_adjustment_groups: ClassVar = {
        "none": Scaled(1.0, ""),
        "first": Scaled(0.5, "0.weight"),
        "biases": Scaled(0.25, "bias"),
    }

    def forward(self, batch: Tensor) -> Tensor:
        summarize_scalar("norm", self.norm.weight[0].detach())
        return super().forward(batch)


def batches(batch_size: int, shuffle: bool = False) -> torch.utils.data.DataLoader[Tensor]:
    data = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(data, batch_size, shuffle=shuffle)  # type: ignore[arg-type]


class Kept(Logger):
    """Keeps what it is told, in memory."""

    told: list[tuple[int, str, float]] = []  # noqa: RUF012 - a YAML makes it anew

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        self.told += [(step, name, float(value)) for name, value in metrics.items()]


class KilledError(Exception):
    """In place of a kill."""


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise KilledError(f"step {self.step}")


def schedule(name: str, first: float, last: float, num_steps: int) -> dict[str, Any]:
    rates = {"initial_learning_rate": first, "end_learning_rate": last}
    return {name: {**rates, "total_iters": num_steps}}


RATES = [schedule("LinearLR", 0.0, 0.01, 2), schedule("CosineDecayLR", 0.01, 0.001, 8)]
LOADER = {"data_processor": f"{HERE}.batches", "batch_size": 4, "shuffle": True}
RUN: dict[str, Any] = {
    "init": {
        "device": "CPU",
        "seed": 1,
        "model": {"name": f"{HERE}.Net", "hidden_size": WIDTH},
        "optimizer": {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.1}},
        "schedulers": [{"SequentialLR": {"schedulers": RATES}}],
        "precision": {"enabled": False, "max_gradient_norm": 0.5},
        "loop": {"max_steps": 6, "eval_frequency": 4},
        "checkpoint": {"steps": 2, "checkpoint_name": "checkpoint_{step}.pt"},
        "loggers": [{f"{HERE}.Kept": {}}],
    },
    "fit": {"train_dataloader": LOADER},
}


def changed(**keys: Any) -> dict[str, Any]:
    """The run with other values by their keys, such as ``init__seed=2``; None leaves one out."""
    run = copy.deepcopy(RUN)
    for key, value in keys.items():
        at = run
        *way, last = key.split("__")
        for name in way:
            at = at.setdefault(name, {})
        at[last] = value
        if value is None:
            del at[last]
    return run


def text_of(*runs: dict[str, Any]) -> str:
    listed = [{"trainer": run} for run in runs]
    whole = listed[0] if len(runs) == 1 else {"trainer": listed}
    return yaml.safe_dump(whole, sort_keys=False)


def train(folder: Path, *runs: dict[str, Any], command: str = "fit") -> list[Trainer]:
    phases = parse_phases(SourceText("run.yaml", text_of(*runs)))
    return run_phases(phases, command, model_dir=folder)


def losses(name: str = "train/loss") -> Iterator[tuple[int, float]]:
    """Those that were told since the last call, by step."""
    told, Kept.told[:] = list(Kept.told), []
    return ((step, value) for step, known, value in told if known == name)


def weights(trainer: Trainer) -> list[Tensor]:
    return [weight.detach() for weight in trainer.model.parameters()]
