"""One training run, told once as a plain PyTorch loop and once as a session."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from openwafer.training.frontends.session import cbtorch
from openwafer.training.frontends.session.session import Session
from openwafer.training.plan_record import Mode
from tests.training.stream.small_gpt import adamw, build_gpt, gpt_loss, gpt_run

CAP = "600KiB"
MAX_NORM = 0.5
BATCHES = [gpt_run().batch(step, 0) for step in range(4)]

Clip = Callable[[list[nn.Parameter]], object]


def clip(parameters: list[nn.Parameter]) -> Tensor:
    return nn.utils.clip_grad_norm_(parameters, MAX_NORM)


def no_clip(parameters: list[nn.Parameter]) -> None:
    """Leave the gradients."""


@dataclass
class Script:
    """A script's model, optimizer and scheduler, and the losses that it has seen."""

    optimize: Callable[[nn.Module], Optimizer] = adamw
    clip: Clip = no_clip
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model: nn.Module = build_gpt()
        self.optimizer = self.optimize(self.model)
        self.scheduler: LRScheduler = StepLR(self.optimizer, step_size=1, gamma=0.5)

    def step(self, index: int, batch: Tensor) -> Tensor:
        torch.manual_seed(index)
        self.optimizer.zero_grad()
        loss = gpt_loss(self.model, batch)
        loss.backward()
        self.clip(list(self.model.parameters()))
        self.optimizer.step()
        self.scheduler.step()
        return loss

    def train(self, first: int = 0, last: int = 4) -> "Script":
        for index, batch in enumerate(BATCHES[first:last], first):
            self.losses.append(self.step(index, batch).item())
        return self

    def evaluate(self) -> list[float]:
        self.model.eval()
        with torch.no_grad():
            return [gpt_loss(self.model, batch).item() for batch in BATCHES]

    def weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


class SessionScript(Script):
    """The same in the session style."""

    def __post_init__(self) -> None:
        cbtorch.initialize(cs_ip="10.0.0.1:9000", device_memory=CAP)
        super().__post_init__()
        self.model = cbtorch.module(self.model)
        cbtorch.optimizer(self.optimizer)

    def train(self, first: int = 0, last: int = 4) -> "SessionScript":
        loader = cbtorch.dataloader(BATCHES[first:last])
        with cbtorch.Session(loader, "train") as session:
            for index, batch in enumerate(loader, first):
                loss = self.step(index, batch)
                session.add_step_closure(lambda lost: self.losses.append(lost.item()), (loss,))
            require_streamed(session)
        return self

    def evaluate(self) -> list[float]:
        self.model.eval()
        loader, losses = cbtorch.dataloader(BATCHES), list[float]()
        with cbtorch.Session(loader, "eval") as session:
            losses += [gpt_loss(self.model, batch).item() for batch in loader]
            require_streamed(session)
        return losses


def require_streamed(session: Session) -> None:
    plan = session.streamed.plan
    assert plan is not None
    assert plan.mode is Mode.STREAMED
