"""What programs do whose systems own a share of the store each, as every process runs it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.joining import meet_launched
from openwafer.training.host_memory import read_host_memory
from openwafer.training.stream.stream_options import StreamOptions
from tests.training.stream.loop_programs import (
    MAX_NORM,
    SHARED,
    Loop,
    be_impatient,
    joined,
    rank,
    wait_for_end,
    weights_of,
)
from tests.training.stream.loop_scenes import backward
from tests.training.stream.small_gpt import TIED, adamw, build_gpt

Optimize = Callable[[nn.Module], Optimizer]
SCALED = Loop(scales=True, clip="own")
WIDTH = 1024
NUM_LAYERS = 12


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adagrad(model: nn.Module) -> Optimizer:
    """As no rule of ours is."""
    return torch.optim.Adagrad(model.parameters(), lr=1e-2)


def with_barriers() -> dict[str, Tensor] | None:
    """A barrier of the program stands behind every line of :data:`SCALED`."""
    (group,) = meet_launched(60.0).groups(("barriers",))
    model = build_gpt(TIED)
    optimizer = adamw(model)
    with joined(model, optimizer, SHARED) as streamed:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=SCALED.decay)
        lines: list[Callable[[], Any]] = [
            lambda: scaler.unscale_(optimizer),
            lambda: streamed.clip_grad_norm_(MAX_NORM),
            lambda: scaler.step(optimizer),
            scaler.update,
            schedule.step,
            optimizer.zero_grad,
        ]
        for step in range(SCALED.num_steps):
            loss = SCALED.loss(model, step, rank(), 2)
            for line in (scaler.scale(loss).backward, *lines):
                group.gather(torch.zeros(1), "a barrier")
                line()
        return weights_of(model) if streamed.rank == 0 else None


def of_two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))


def on_three_systems() -> dict[str, Tensor] | None:
    """Two records, of which one system has none."""
    model = of_two_layers()
    optimizer = sgd(model)
    with joined(model, optimizer, SHARED, memory="2MiB") as streamed:
        for step in range(3):
            learn(model, 3 * step + rank())
            optimizer.step()
            optimizer.zero_grad()
        return weights_of(model) if streamed.rank == 0 else None


def on_one_system() -> dict[str, Tensor]:
    """The same of a plain loop."""
    model = of_two_layers()
    optimizer = sgd(model)
    for step in range(3):
        for index in range(3):
            learn(model, 3 * step + index)
        optimizer.step()
        optimizer.zero_grad()
    return weights_of(model)


def learn(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(4, 256, generator=generator)).square().mean().backward()


def closed() -> dict[str, Tensor] | None:
    """A step and a backward, and what rank 0 has when the loop is closed."""
    model = build_gpt(TIED)
    optimizer = adamw(model)
    with joined(model, optimizer, SHARED):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        backward(model, 1)
    return None if rank() else left(model, optimizer)


def closed_plainly() -> dict[str, Tensor]:
    """The same of a plain loop."""
    model = build_gpt(TIED)
    optimizer = adamw(model)
    for step in range(2):
        for index in range(2):
            Loop().loss(model, step, index, 2).backward()
        if not step:
            optimizer.step()
            optimizer.zero_grad()
    return left(model, optimizer)


def left(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Weights, gradients and states."""
    found = {f"weight {name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        found[f"gradient {name}"] = parameter.grad
        states = optimizer.state[parameter].items()
        found |= {f"{state} of {name}": value for state, value in states}
    return found


@dataclass(frozen=True)
class HostBytes:
    """What a step adds to the resident set of a process."""

    options: StreamOptions

    def __call__(self) -> int:
        before = read_host_memory().resident_bytes
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)])
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with joined(model, optimizer, self.options, memory="24MiB"):
            model(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            model(torch.ones(1, WIDTH)).sum().backward()
            return read_host_memory().resident_bytes - before


# Mistakes.


def read_in_a_forward() -> list[str]:
    """A hook reads all weights on rank 0; what it is told, of a loop that goes on."""
    model = build_gpt(TIED)
    told: list[str] = []

    def read(*_: object) -> None:
        try:
            told.extend(str(p.data.norm()) for p in model.parameters())
        except OpenwaferError as found:
            told.append(str(found))

    with joined(model, adamw(model), SHARED) as streamed:
        backward(model)
        if streamed.rank == 0:
            model.layers[0].register_forward_pre_hook(read)
        backward(model)
    return told[-1:]


def read_behind_a_barrier() -> None:
    """Rank 0 saves while the others wait for it in a line of the program."""
    model = build_gpt(TIED)
    optimizer = adamw(model)
    with joined(model, optimizer, SHARED) as streamed:
        backward(model)
        if streamed.rank == 0:
            be_impatient(streamed)
            for value in model.state_dict().values():
                value.clone()  # A value is asked for when it is read.
        else:
            wait_for_end(0)
            optimizer.step()


@dataclass(frozen=True)
class Optimized:
    """The first backward with an optimizer of this process."""

    optimize: Optimize

    def __call__(self) -> None:
        model = build_gpt(TIED)
        with joined(model, self.optimize(model), SHARED):
            backward(model)


def other_states_on_rank_1(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if rank() else 0.9)


class Locked(torch.optim.Adagrad):
    """Has what no other process can be sent."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.lock = Lock()


class Lock:
    """A lock of which a copy is another one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, object]) -> "Lock":
        return Lock()


def locked(model: nn.Module) -> Optimizer:
    return Locked(model.parameters())
