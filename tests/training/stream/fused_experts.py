"""Tiny mixtures whose experts are fused into one weight, trained plainly and streamed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.step import StepGradients, clip
from openwafer.training.stream.assemble import Planned, assemble, plan_run
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.execute.thread_state import autocast
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.records import weights_of
from openwafer.training.stream.stream_options import PlanInput, StreamOptions
from tests.training.architectures import ARCHITECTURES, Architecture

Tensors = Mapping[str, torch.Tensor]


def mixture(name: str, implementation: str, **config: object) -> Architecture:
    """A row of the table of architectures with an experts implementation of transformers."""
    [row] = [row for row in ARCHITECTURES if row.name == name]
    more = {"experts_implementation": implementation, "num_hidden_layers": 2, **config}
    return replace(row, config={**row.config, **more})


@dataclass(frozen=True)
class Training:
    """How a mixture is trained.

    Attributes:
        row: the mixture.
        num_tokens: of the one sequence in a micro-batch; few of them leave experts without any.
    """

    row: Architecture
    policy: Activations = Activations.RECOMPUTE
    autocast_dtype: torch.dtype | None = None
    num_micro_batches: int = 1
    clip_norm: float | None = None
    num_tokens: int = 3
    num_steps: int = 2
    device_memory_bytes: int | None = None

    def loss(self, step: int, index: int, model: nn.Module) -> torch.Tensor:
        batch = self.row.batch(10 * step + index, 1)
        cut = {name: value[:, : self.num_tokens] for name, value in batch.items()}
        loss: torch.Tensor = model(**cut).loss
        return loss / self.num_micro_batches

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True)


def train_plainly(training: Training) -> Tensors:
    model = training.row.build()
    optimizer = training.optimizer(model)
    for step in range(training.num_steps):
        for index in range(training.num_micro_batches):
            with autocast(torch.device("cpu"), training.autocast_dtype):
                loss = training.loss(step, index, model)
            loss.backward()
        if training.clip_norm is not None:
            clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def plan(training: Training, model: nn.Module) -> Planned:
    def loss_of(model: nn.Module, batch: object) -> torch.Tensor:
        assert isinstance(batch, int)
        return training.loss(0, batch, model)

    batches = range(training.num_micro_batches)
    options = StreamOptions(
        device="cpu",
        mode=Mode.STREAMED,
        default_activations=training.policy,
    )
    budget, clips = training.device_memory_bytes, training.clip_norm is not None
    given = PlanInput(options, budget, keeps_gradients=clips)
    workload = Workload(model, list(batches), loss_of, training.autocast_dtype)
    return plan_run(workload, Updater(training.optimizer(model), model), given, folder=None)


@dataclass
class Streamed:
    """What came of a streamed training."""

    planned: Planned
    weights: Tensors
    fetched_bytes: list[int]
    used: frozenset[str]
    peak_bytes: int


def train_streamed(training: Training) -> Streamed:
    model = training.row.build()
    planned = plan(training, model)
    execution = assemble(model, planned, folder=None)
    assert isinstance(execution, StreamedExecution)
    gradients = StepGradients(is_clipped=True, is_scaled=False)
    if training.clip_norm is not None:
        execution.watch_gradients(gradients.watch)
    order, fetched = [name for name, _ in model.named_parameters()], [0]
    for step in range(training.num_steps):
        indices = range(training.num_micro_batches)
        forwards = [partial(training.loss, step, index, model) for index in indices]
        gradients.begin(1.0)
        execution.run(forwards, lambda loss: loss, lambda index: None)
        coefficient = 1.0
        if training.clip_norm is not None:
            coefficient = clip(gradients.norms, order, training.clip_norm).coefficient
        execution.complete_step(coefficient)
        fetched.append(execution.traffic.fetch_bytes)
    execution.flush()
    weights = {name: weight.clone() for name, weight in weights_of(execution.store)}
    used, peak_bytes = execution.executor.experts.used, execution.device.peak_bytes
    assert peak_bytes is not None
    execution.close()
    execution.store.close()
    return Streamed(
        planned, weights, [after - before for before, after in pairwise(fetched)], used, peak_bytes
    )


def differing(training: Training) -> list[str]:
    """Parameters that the streamed training leaves with other bits than the plain loop."""
    plain, streamed = train_plainly(training), train_streamed(training).weights
    assert plain.keys() == streamed.keys()
    return [name for name in plain if not _same_bits(plain[name], streamed[name])]


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    as_bytes = (one.contiguous().view(torch.uint8) for one in (first, second))
    return torch.equal(*as_bytes)
