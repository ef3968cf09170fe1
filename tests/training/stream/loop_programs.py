"""A user's loop over the small GPT, as a program that every process of a launcher runs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from openwafer.training.frontends import stream_weights
from openwafer.training.frontends.loop.loop import StreamedLoop
from openwafer.training.models.reference_gpt import GptConfig
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems
from openwafer.training.stream.stream_options import StreamOptions
from tests.training.stream.small_gpt import TIED, adamw, build_gpt, gpt_loss, gpt_run

CAP = "1MiB"
PATIENCE = timedelta(seconds=120)
MAX_NORM = 0.5
OPTIONS = StreamOptions(host_memory_bytes=1 << 30, systems_timeout_seconds=60.0)
SHARED = replace(OPTIONS, store_systems=StoreSystems.ALL)


def rank() -> int:
    return int(os.environ["RANK"])


def size() -> int:
    return int(os.environ["WORLD_SIZE"])


def wait_for_end(*ranks: int) -> None:
    """Do nothing until other ranks have returned from the program, whatever they are told."""
    run = os.environ["TORCHELASTIC_RESTART_COUNT"]
    port = int(os.environ["MASTER_PORT"])
    store = TCPStore("localhost", port, is_master=False, wait_for_workers=False)
    store.wait([f"{run}/{rank}" for rank in ranks], PATIENCE)


def be_impatient(streamed: StreamedLoop) -> None:
    """Wait half a second for each message from now on, because none comes.

    Until then others may be as slow as they are.
    """
    systems = streamed._systems  # noqa: SLF001 - a program has one limit for all of its run
    assert systems is not None
    systems.control.group.timeout_seconds = 0.5


@contextmanager
def joined(
    model: nn.Module,
    optimizer: Optimizer,
    options: StreamOptions = OPTIONS,
    folder: Path | None = None,
    *,
    keeps_masters: bool = False,
    memory: str = CAP,
) -> Iterator[StreamedLoop]:
    streamed = stream_weights(
        model,
        optimizer,
        device_memory=memory,
        folder=folder,
        keeps_masters=keeps_masters,
        systems="all",
        options=options,
    )
    with streamed:
        yield streamed


@dataclass(frozen=True)
class Loop:
    """What is trained, and by which lines.

    Attributes:
        num_backwards: of each process before a step.
        clip: between backward and step: "torch", "own" or "".
        zeroes: how gradients are zeroed: "none", "zeros", or "seldom", in every second step.
        overflows: whether a loss of the second step is infinite.
        larger: the micro-batch that is larger than the others.
        backward: how gradients come: "plainly", "paired", of two forwards, or "twice" of one.
        decay: of the learning rate, from step to step.
        averages: whether gradients are averaged by the systems.
        optimize: makes the optimizer.
    """

    config: GptConfig = TIED
    num_steps: int = 3
    num_backwards: int = 1
    clip: str = ""
    zeroes: str = "none"
    scales: bool = False
    overflows: int = -1
    larger: int = -1
    backward: str = "plainly"
    decay: float = 0.5
    averages: bool = False
    optimize: Callable[[nn.Module], Optimizer] = adamw

    def go_back(self, losses: Iterator[Tensor]) -> None:
        """Call backward for the losses of this process."""
        if self.backward == "twice":
            graphs = list(losses)
            for loss in graphs:
                loss.backward(retain_graph=True)
            losses = iter(graphs)
        for loss in losses:
            loss.backward()

    def loss(self, model: nn.Module, step: int, index: int, num: int) -> Tensor:
        """Of one of the micro-batches of all processes, which draws what it draws anywhere."""
        torch.manual_seed(1000 * step + index)
        batch = gpt_run().batch(step, index)
        if index == self.larger:
            batch = batch.repeat(2, 1)
        loss = gpt_loss(model, batch) / num
        if self.backward == "paired":
            loss = loss + gpt_loss(model, batch) * 0.5
        return loss * torch.inf if (step, index) == (1, self.overflows) else loss

    def train(
        self, model: nn.Module, optimizer: Optimizer, turns: list[list[int]], clip: "Clip"
    ) -> "Left":
        """Take the steps; `turns` are the micro-batches of this process."""
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=self.decay)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=self.scales)
        num = len(turns) * self.num_backwards if len(turns) > 1 else len(turns[0])
        if self.averages:
            num //= len(turns)
        norms = []
        for step in range(self.num_steps):
            own = turns[rank() if len(turns) > 1 else 0]
            self.go_back(scaler.scale(self.loss(model, step, index, num)) for index in own)
            if self.clip:
                scaler.unscale_(optimizer)
                norms.append(clip(MAX_NORM))
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            if self.zeroes != "seldom" or step % 2:
                optimizer.zero_grad(set_to_none=self.zeroes == "none")
        return Left({}, norms, scaler.get_scale())


Clip = Callable[[float], Tensor]


@dataclass(frozen=True)
class Left:
    """What a loop leaves."""

    weights: dict[str, Tensor]
    norms: list[Tensor]
    scale: float

    @property
    def bits_of_norms(self) -> list[int]:
        return [int(norm.view(torch.int32)) for norm in self.norms]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def plainly(loop: Loop, num_processes: int, dtype: torch.dtype = torch.float32) -> Left:
    """In one process without streaming: micro-batch by micro-batch, in one order."""
    model = build_gpt(loop.config).to(dtype)
    optimizer = loop.optimize(model)
    turns = [list(range(num_processes * loop.num_backwards))]
    clip: Clip = lambda most: clip_grad_norm_(model.parameters(), most)  # noqa: E731
    return replace(loop.train(model, optimizer, turns, clip), weights=weights_of(model))


@dataclass(frozen=True)
class Together:
    """The loop on all processes; only rank 0 has built the weights that count."""

    loop: Loop = Loop()
    folder: Path | None = None
    options: StreamOptions = OPTIONS

    def __call__(self) -> Left:
        model = build_gpt(self.loop.config)
        if rank():
            model.apply(_forget)
        optimizer = self.loop.optimize(model)
        tier = StoreTier.DRAM if self.folder is None else StoreTier.DISK
        options = replace(self.options, tier=tier, averages_gradients=self.loop.averages)
        with joined(model, optimizer, options, self.folder) as streamed:
            turns = [
                list(range(first, size() * self.loop.num_backwards, size()))
                for first in range(size())
            ]
            clip: Clip = lambda most: clip_grad_norm_(model.parameters(), most)  # noqa: E731
            if self.loop.clip == "own":
                clip = streamed.clip_grad_norm_
            left = self.loop.train(model, optimizer, turns, clip)
            return replace(left, weights=weights_of(model)) if streamed.rank == 0 else left


@torch.no_grad()
def _forget(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.zero_()
