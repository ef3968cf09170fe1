"""What else programs do with a model on several systems, as every process of a launcher runs it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.frontends.loop.loop import StreamedLoop
from openwafer.training.plan_record import Mode
from openwafer.training.stream.stream_options import StreamOptions
from tests.training.stream.loop_programs import (
    CAP,
    OPTIONS,
    Loop,
    be_impatient,
    joined,
    rank,
    size,
    wait_for_end,
    weights_of,
)
from tests.training.stream.small_gpt import TIED, adamw, build_gpt, gpt_loss, gpt_run

LOOP = Loop()


def backward(model: nn.Module, step: int = 0) -> None:
    LOOP.loss(model, step, rank(), size()).backward()


@torch.no_grad()
def evaluated(model: nn.Module, index: int) -> Tensor:
    model.eval()
    loss = gpt_loss(model, gpt_run().batch(9, index))
    model.train()
    return loss


def evaluating(options: StreamOptions = OPTIONS) -> list[Tensor]:
    """Before the first step, after a step on all systems, and on rank 0 by itself."""
    model = build_gpt(TIED)
    optimizer = adamw(model)
    with joined(model, optimizer, options) as streamed:
        losses = [evaluated(model, rank())]
        for step in range(2):
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(evaluated(model, rank()))
            if rank() == 0:
                with streamed.alone():
                    losses.append(evaluated(model, 7))
        return losses


def plain_losses(rank: int) -> list[Tensor]:
    model = build_gpt(TIED)
    optimizer = adamw(model)
    losses = [evaluated(model, rank)]
    for step in range(2):
        for index in range(2):
            LOOP.loss(model, step, index, 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [evaluated(model, index) for index in ([0, 7] if rank == 0 else [rank])]
    return losses


@dataclass(frozen=True)
class Resumed:
    """Three steps, of which the last is taken by a loop that loads what rank 0 has saved."""

    saved: Path
    options: StreamOptions = OPTIONS

    def __call__(self) -> dict[str, Tensor] | None:
        self.run(range(2), is_resumed=False)
        return self.run(range(2, 3), is_resumed=True)

    def run(self, steps: range, *, is_resumed: bool) -> dict[str, Tensor] | None:
        model = build_gpt(TIED)
        optimizer = adamw(model)
        with joined(model, optimizer, self.options) as streamed:
            for step in steps:
                backward(model, step)
                if is_resumed:
                    model.load_state_dict(torch.load(self.saved)["model"])
                    optimizer.load_state_dict(torch.load(self.saved)["optimizer"])
                    optimizer.zero_grad()
                    backward(model, step)
                optimizer.step()
                optimizer.zero_grad()
            if streamed.rank:
                return None
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(states, self.saved)
            return weights_of(model)


def after_close() -> dict[str, Tensor] | str:
    """Rank 0 goes on with its model; the others have none."""
    model = build_gpt(TIED)
    optimizer = adamw(model)
    with joined(model, optimizer):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    evaluated(model, 0)
    return weights_of(model)


def masters(options: StreamOptions = OPTIONS) -> dict[str, Tensor] | None:
    """Weights in bf16 after three clipped steps, whose fp32 masters rank 0 keeps."""
    model = build_gpt(TIED).to(torch.bfloat16)
    optimizer = adamw(model)
    with joined(model, optimizer, options, keeps_masters=True) as streamed:
        for step in range(3):
            backward(model, step)
            streamed.clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()
        return dict(streamed.masters()) if streamed.rank == 0 else None


def masters_of_one_system() -> dict[str, Tensor]:
    """The same on one system, which calls backward for the micro-batches of both."""
    model = build_gpt(TIED).to(torch.bfloat16)
    optimizer = adamw(model)
    with stream_weights(
        model, optimizer, device_memory=CAP, keeps_masters=True, options=OPTIONS
    ) as streamed:
        for step in range(3):
            for index in range(2):
                LOOP.loss(model, step, index, 2).backward()
            streamed.clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()
        return dict(streamed.masters())


# Mistakes: what each rank is told.

Line = Callable[[nn.Module, torch.optim.Optimizer, StreamedLoop], Any]


@dataclass(frozen=True)
class Mistake:
    """A loop with one wrong line after its first backward; the text of the error, by rank."""

    line: Line
    options: StreamOptions = OPTIONS

    def __call__(self) -> str:
        model = build_gpt(TIED)
        optimizer = adamw(model)
        with joined(model, optimizer, self.options) as streamed:
            backward(model)
            try:
                self.line(model, optimizer, streamed)
            except OpenwaferError as found:
                streamed.__exit__(OpenwaferError, found, None)
                return str(found)
            return ""


def one_backward_more(model: nn.Module, optimizer: torch.optim.Optimizer, _: StreamedLoop) -> None:
    if rank() == 1:
        backward(model)
    else:
        optimizer.step()


def no_step(_: nn.Module, optimizer: torch.optim.Optimizer, streamed: StreamedLoop) -> None:
    if rank() == 1:
        wait_for_end(0, 2)
    else:
        be_impatient(streamed)
        optimizer.step()


def state_everywhere(model: nn.Module, _o: torch.optim.Optimizer, _: StreamedLoop) -> None:
    model.state_dict()


def weight_everywhere(model: nn.Module, _o: torch.optim.Optimizer, _: StreamedLoop) -> None:
    next(model.parameters()).norm().item()


def states_everywhere(_m: nn.Module, optimizer: torch.optim.Optimizer, _: StreamedLoop) -> None:
    optimizer.state_dict()


def state_read(model: nn.Module, optimizer: torch.optim.Optimizer, _: StreamedLoop) -> None:
    optimizer.step()
    optimizer.state[next(model.parameters())]["exp_avg"].norm()


def gradient_on_one(model: nn.Module, optimizer: torch.optim.Optimizer, _: StreamedLoop) -> None:
    if rank() == 0:
        gradient = next(model.parameters()).grad
        assert gradient is not None
        gradient.norm()
    else:
        optimizer.step()


def gradient_set(model: nn.Module, _o: torch.optim.Optimizer, _: StreamedLoop) -> None:
    parameter = next(model.parameters())
    parameter.grad = torch.zeros(parameter.shape)


def swapped_on_one(model: nn.Module, optimizer: torch.optim.Optimizer, _: StreamedLoop) -> None:
    parameter = next(model.parameters())
    if rank() == 1:
        # What `_swap_tensors` and the like leave.
        parameter.__class__ = nn.Parameter
    optimizer.step()


# Models that cannot be trained so.


@dataclass(frozen=True)
class Begun:
    """The first backward of a model; the text of its error, by rank."""

    build: Callable[[], nn.Module]
    options: StreamOptions = OPTIONS
    memory: str = CAP

    def __call__(self) -> None:
        torch.manual_seed(0)
        model = self.build()
        optimizer = torch.optim.AdamW(model.parameters())
        with joined(model, optimizer, self.options, memory=self.memory):
            width = next(model.parameters()).shape[-1]
            model(torch.randn(4, width)).sum().backward()


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))


def of_linear_layers() -> nn.Module:
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])


def wider_on_rank_1() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8 + rank()))


def wrapped() -> None:
    """As accelerate prepares a model that nobody has prepared."""
    dist.init_process_group("gloo")
    try:
        model = of_linear_layers()
        with joined(model, torch.optim.AdamW(model.parameters())):
            DistributedDataParallel(model)(torch.randn(4, 8)).sum().backward()
    finally:
        dist.destroy_process_group()


RESIDENT = replace(OPTIONS, mode=Mode.RESIDENT)
ON_CUDA = replace(OPTIONS, device="cuda")


def unsaid() -> None:
    model = of_linear_layers()
    stream_weights(model, torch.optim.AdamW(model.parameters()), device_memory=CAP)


def by_itself() -> dict[str, Tensor]:
    torch.manual_seed(rank())
    model = of_linear_layers()
    optimizer = torch.optim.AdamW(model.parameters())
    with stream_weights(model, optimizer, device_memory=CAP, systems=1, options=OPTIONS):
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        return weights_of(model)
