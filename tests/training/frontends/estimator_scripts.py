"""One training run, told once as a plain PyTorch loop and once as an estimator."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from openwafer.training.frontends.estimator.cs_estimator import (
    CerebrasEstimator,
    CSRunConfig,
    EstimatorSpec,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    get_global_step,
    metrics,
)
from openwafer.training.models.reference_gpt import ReferenceGpt
from tests.training.stream.small_gpt import CONFIG, gpt_loss, gpt_run

CAP = "600KiB"
BATCHES = [gpt_run().batch(step, 0) for step in range(8)]


def rate(step: int) -> float:
    return 0.01 / (1 + step)


def optimize(model: torch.nn.Module, step: int) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate(step), weight_decay=0.1)


def model_fn(features: Tensor, labels: Tensor, mode: str) -> EstimatorSpec:
    """The GPT with dropout; its learning rate falls with the global step."""
    model = ReferenceGpt(CONFIG)
    found = model(features, labels=labels)
    if mode == "infer":
        return EstimatorSpec(mode, predictions={"tokens": found.logits.argmax(-1)})
    optimizer = optimize(model, int(get_global_step()))
    right = metrics.accuracy(labels, found.logits.argmax(-1))
    return EstimatorSpec(
        mode, loss=found.loss, train_op=optimizer, eval_metric_ops={"right": right}
    )


def input_fn() -> Iterator[tuple[Tensor, Tensor]]:
    """The batches in an order of torch's random numbers, which one more tells of each."""
    for index in torch.randperm(len(BATCHES)).tolist():
        torch.rand(())
        yield BATCHES[index], BATCHES[index]


class Losses(SessionRunHook):
    """Notes losses; may end the process's run behind a step."""

    def __init__(self, dies_behind: int | None = None) -> None:
        self.seen: list[float] = []
        self._dies_behind = dies_behind

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        return SessionRunArgs({"loss": "loss", "step": "global_step"})

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self.seen.append(run_values.results["loss"])
        if run_values.results["step"] == self._dies_behind:
            raise KeyboardInterrupt


@dataclass
class Plain:
    """What a plain loop gives."""

    losses: list[float]
    weights: dict[str, Tensor]

    @classmethod
    def trained(cls) -> "Plain":
        torch.manual_seed(0)
        batches = input_fn()
        batch = next(batches)
        model = ReferenceGpt(CONFIG)
        optimizer, losses = optimize(model, 0), list[float]()
        while True:
            optimizer.param_groups[0]["lr"] = rate(len(losses))
            loss = gpt_loss(model, batch[0])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            following = next(batches, None)
            if following is None:
                return cls(losses, {k: v.clone() for k, v in model.state_dict().items()})
            batch = following


def estimator(folder: Path, model: Any = model_fn, **options: Any) -> CerebrasEstimator:
    config = CSRunConfig(cs_ip="10.0.0.1:9000", save_checkpoints_steps=3, **options)
    return CerebrasEstimator(model, str(folder), config=config, params={}, device_memory=CAP)


def weights_of(estimator: CerebrasEstimator, names: Sequence[str]) -> dict[str, Tensor]:
    found = estimator.get_variable_value
    return {name: torch.from_numpy(found(f"referencegpt.{name}")) for name in names}
