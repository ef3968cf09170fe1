"""Trains an architecture twice, plainly and streamed, and compares every bit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.assemble import assemble, plan_run
from openwafer.training.stream.execute.thread_state import autocast
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.records import weights_of
from openwafer.training.stream.stream_options import PlanInput, StreamOptions
from tests.training.architectures import Architecture

BATCH_SIZE = 2


@dataclass(frozen=True)
class Training:
    """How a row of the table is trained.

    Attributes:
        autocast_dtype: ``None`` for no autocast.
    """

    architecture: Architecture
    num_steps: int
    autocast_dtype: torch.dtype | None = None
    num_micro_batches: int = 2

    def batches(self, step: int) -> list[object]:
        numbers = range(10 * step, 10 * step + self.num_micro_batches)
        return [self.architecture.batch(number, BATCH_SIZE) for number in numbers]


@dataclass(frozen=True)
class Parity:
    """What came of a comparison.

    Attributes:
        num_differing: parameters and buffers that differ in a bit after the last step.
        peak_ratio: metered peak of device memory against the predicted one.
    """

    num_differing: int
    peak_ratio: float


def compare(training: Training, policies: Sequence[Activations]) -> list[Parity]:
    """AdamW steps in the plain loop and streamed under each policy, from one seed."""
    plain = _train_plainly(training)
    return [_compare(training, policy, plain) for policy in policies]


def _compare(training: Training, policy: Activations, plain: Mapping[str, torch.Tensor]) -> Parity:
    model = training.architecture.build()
    workload = Workload(model, training.batches(0), _loss_of, training.autocast_dtype)
    options = StreamOptions(
        device="cpu",
        mode=Mode.STREAMED,
        default_activations=policy,
        min_layer_bytes=1,
    )
    given = PlanInput(options, device_memory_bytes=1 << 30)
    planned = plan_run(workload, Updater(_optimizer(model), model), given, folder=None)
    execution = assemble(model, planned, folder=None)
    for step in range(training.num_steps):
        forwards = [partial(_loss_of, model, batch) for batch in training.batches(step)]
        execution.run(forwards, _shares_of, partial(_seed, step))
        execution.complete_step(1.0)
    streamed = {name: weight.clone() for name, weight in weights_of(execution.store)}
    streamed |= dict(model.named_buffers())
    peak_bytes = execution.device.peak_bytes
    assert peak_bytes is not None
    peak = peak_bytes / planned.plan.predicted_peak_bytes
    execution.close()
    execution.store.close()
    differing = [name for name, value in plain.items() if not torch.equal(value, streamed[name])]
    return Parity(len(differing), peak)


def _train_plainly(training: Training) -> dict[str, torch.Tensor]:
    model = training.architecture.build()
    optimizer = _optimizer(model)
    for step in range(training.num_steps):
        for index, batch in enumerate(training.batches(step)):
            _seed(step, index)
            with autocast(torch.device("cpu"), training.autocast_dtype):
                loss = _loss_of(model, batch)
            (loss / training.num_micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in _tensors(model).items()}


def _shares_of(losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [loss / len(losses) for loss in losses]


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def _loss_of(model: nn.Module, batch: object) -> torch.Tensor:
    assert isinstance(batch, dict)
    loss = model(**batch).loss
    assert isinstance(loss, torch.Tensor)
    return loss


def _seed(step: int, index: int) -> None:
    torch.manual_seed(100 * step + index)
