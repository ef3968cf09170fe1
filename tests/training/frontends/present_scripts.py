"""The training run of the session style's tests, told as a script of the present style."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.present.executor import DataExecutor
from openwafer.training.plan_record import Mode
from tests.training.frontends.session_scripts import BATCHES, CAP, Script
from tests.training.stream.small_gpt import gpt_loss


def begin(kind: str = "CPU", memory: str = CAP) -> None:
    cstorch.backend(kind, device_memory=memory)


def adamw(model: nn.Module) -> Optimizer:
    return cstorch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


class PlainScript(Script):
    """The plain loop with an optimizer of the style, which asks for a backend."""

    kind, memory = "CPU", CAP

    def __post_init__(self) -> None:
        begin(self.kind, self.memory)
        super().__post_init__()


class PresentScript(PlainScript):
    """The same with a compiled model, a traced step and an executor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compiled = cstorch.compile(self.model, cstorch.backend())
        self.traced = cstorch.trace(self.step)

    def train(self, first: int = 0, last: int = 4) -> "PresentScript":
        @cstorch.step_closure
        def note(loss: Tensor) -> None:
            self.losses.append(loss.item())

        executor = executor_of(BATCHES[first:last])
        for index, batch in enumerate(executor, first):
            note(self.traced(index, batch))
            if index == last - 1:
                require_streamed(executor)
        return self

    def evaluate(self) -> list[float]:
        self.model.eval()
        losses = list[float]()

        @cstorch.trace
        @torch.no_grad()
        def step(batch: Tensor) -> Tensor:
            return gpt_loss(self.model, batch)

        note = cstorch.step_closure(lambda loss: losses.append(loss.item()))
        for batch in (executor := executor_of(BATCHES)):
            note(step(batch))
            require_streamed(executor)
        return losses


def loader_of(batches: Iterable[Any]) -> cstorch.utils.data.DataLoader:
    return cstorch.utils.data.DataLoader(partial(list, batches))


def executor_of(batches: Iterable[Any], **options: Any) -> DataExecutor:
    return DataExecutor(loader_of(batches), **options)


def require_streamed(executor: DataExecutor) -> None:
    assert executor.streamed is not None
    plan = executor.streamed.plan
    assert plan is not None
    assert plan.mode is Mode.STREAMED
