"""One training run, told once, as a plain PyTorch loop and streamed."""

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from openwafer.trace import Trace
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.step import StepGradients, clip
from openwafer.training.stream.assemble import (
    Planned,
    assemble,
    plan_run,
)
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.execution import Execution, StreamedExecution
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.placement import HostBudget, StoreTier, place
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.records import weights_of
from openwafer.training.stream.stream_options import PlanInput, StreamOptions

Parameters = Mapping[str, Tensor]
LossOf = Callable[[nn.Module, Any], Tensor]
STREAMED = StreamOptions(device="cpu", mode=Mode.STREAMED, host_memory_bytes=1 << 30)


@dataclass(frozen=True)
class Run:
    """What is trained, on what, for how long.

    Attributes:
        build: makes the model, initial weights included.
        optimize: makes the optimizer.
        draw: makes the batch of a micro-batch from a generator of its own.
        loss_of: runs the model on a batch.
        learning_rate: of a step, for all groups; ``None`` leaves them as they are.
    """

    build: Callable[[], nn.Module]
    optimize: Callable[[nn.Module], Optimizer]
    draw: Callable[[torch.Generator], Any]
    loss_of: LossOf
    num_steps: int
    num_micro_batches: int = 1
    clip_norm: float | None = None
    learning_rate: Callable[[int], float] | None = None

    def batch(self, step: int, index: int) -> Any:
        return self.draw(torch.Generator().manual_seed(1000 * step + index))

    def batches(self, step: int) -> list[Any]:
        return [self.batch(step, index) for index in range(self.num_micro_batches)]

    def start_step(self, optimizer: Optimizer, step: int) -> None:
        if self.learning_rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate(step)


def seed_of(step: int, index: int) -> None:
    drawn = 5000 + 100 * step + index
    torch.manual_seed(drawn)
    random.seed(drawn)


def train_plainly(run: Run) -> Parameters:
    """Parameters after the plain loop."""
    model = run.build()
    optimizer = run.optimize(model)
    for step in range(run.num_steps):
        run.start_step(optimizer, step)
        for index in range(run.num_micro_batches):
            seed_of(step, index)
            loss = run.loss_of(model, run.batch(step, index))
            (loss / run.num_micro_batches).backward()
        if run.clip_norm is not None:
            clip_grad_norm_(model.parameters(), run.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def plan(
    run: Run, options: StreamOptions, *, folder: Path | None = None, budget: int | None = None
) -> Planned:
    """The run's plan; updates wait for the whole step where the run clips."""
    model = run.build()
    return plan_run(
        Workload(model, run.batches(0), run.loss_of),
        Updater(run.optimize(model), model),
        PlanInput(options, budget, keeps_gradients=run.clip_norm is not None),
        folder=folder,
    )


def on_tier(planned: Planned, tier: StoreTier, host_memory_bytes: int) -> Planned:
    """The same plan over records that live elsewhere."""
    placement = place(planned.plan.layouts, HostBudget(tier, host_memory_bytes, has_folder=True))
    return replace(planned, placements=(placement,))


@dataclass
class StreamedRun:
    """A model whose weights stream; `train` as often as wanted, then `close`."""

    run: Run
    planned: Planned
    folder: Path | None = None
    device: Device | None = None
    losses: list[float] = field(default_factory=list)
    unplanned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.run.build()
        self.optimizer = self.run.optimize(self.model)
        self.updater = Updater(self.optimizer, self.model)
        device = self.device or self.planned.given.make_device()
        fresh = replace(self.planned, updater=self.updater, device=device)
        self.execution: Execution = assemble(self.model, fresh, folder=self.folder)
        self._gradients = StepGradients(is_clipped=True, is_scaled=False)
        self._order = [name for name, _ in self.model.named_parameters()]
        if self.run.clip_norm is not None:
            self.execution.watch_gradients(self._gradients.watch)

    def _coefficient(self) -> float:
        if self.run.clip_norm is None:
            return 1.0
        return clip(self._gradients.norms, self._order, self.run.clip_norm).coefficient

    def step(self, step: int, *, is_watched: bool = False) -> None:
        """One step; the device meters the first steps and those that are watched."""
        self.execution.recorder.trace = Trace() if is_watched else None
        self.run.start_step(self.optimizer, step)
        self._gradients.begin(1.0)
        count = self.run.num_micro_batches
        self.losses += self.execution.run(
            [partial(self.run.loss_of, self.model, batch) for batch in self.run.batches(step)],
            lambda losses: [loss / count for loss in losses],
            partial(seed_of, step),
        )
        if isinstance(self.execution, StreamedExecution):
            self.unplanned += self.execution.executor.log.unplanned
        self.execution.complete_step(self._coefficient())

    def parameters(self) -> Parameters:
        self.execution.flush()
        return {name: weight.clone() for name, weight in weights_of(self.execution.store)}

    @property
    def peak_bytes(self) -> int:
        """Most device bytes of the passes that were metered."""
        peak = self.execution.device.peak_bytes
        assert peak is not None
        return peak

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.execution.store.close)
            stack.callback(self.execution.close)


def train_streamed(run: Run, planned: Planned, *, folder: Path | None = None) -> StreamedRun:
    """The whole run; the caller closes it."""
    streamed = StreamedRun(run, planned, folder)
    for step in range(run.num_steps):
        streamed.step(step, is_watched=step == run.num_steps - 1)
    return streamed


def differing(found: Parameters, expected: Parameters) -> list[str]:
    """Names of the parameters that are not equal bit for bit."""
    assert found.keys() == expected.keys()
    return [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]


def differing_under(run: Run, policy: Activations) -> list[str]:
    """Names of the parameters that differ from the plain loop's under an activation policy."""
    options = replace(STREAMED, default_activations=policy, min_layer_bytes=1)
    streamed = train_streamed(run, plan(run, options))
    try:
        return differing(streamed.parameters(), train_plainly(run))
    finally:
        streamed.close()
