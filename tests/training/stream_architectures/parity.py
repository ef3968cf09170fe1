"""Trains an architecture twice, plainly and streamed, and compares every bit."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.assemble import StreamOptions, assemble, plan_run
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.dry_run import Workload, autocast
from openwafer.training.stream.records import weights_of
from tests.training.architectures import Architecture

NUM_STEPS = 20
BATCH_SIZE = 2


@dataclass(frozen=True)
class Parity:
    """What came of a comparison.

    Attributes:
        num_layers: streamed layers.
        num_differing: parameters and buffers that differ in a bit after the last step.
        peak_ratio: metered peak of device memory against the predicted one.
    """

    num_layers: int
    num_differing: int
    peak_ratio: float


def micro_batches(architecture: Architecture) -> int:
    """Two, or one where running statistics see them in the order of the streamed forward."""
    return 1 if architecture.has_stateful_buffers else 2


def compare(
    architecture: Architecture,
    policy: Activations,
    num_micro_batches: int,
    *,
    num_steps: int = NUM_STEPS,
    autocast_dtype: torch.dtype | None = None,
) -> Parity:
    """AdamW steps each way, from one seed, micro-batch seeds in plain order."""
    plain = _train_plainly(architecture, num_micro_batches, num_steps, autocast_dtype)
    model = architecture.build()
    batches = partial(_batches, architecture, num_micro_batches)
    workload = Workload(model, batches(0), _loss_of, autocast_dtype)
    options = StreamOptions(
        device="cpu",
        device_memory_bytes=1 << 30,
        mode=Mode.STREAMED,
        default_activations=policy,
        min_layer_bytes=1,
    )
    planned = plan_run(workload, Updater(_optimizer(model), model), options, folder=None)
    execution = assemble(model, planned, folder=None)
    for step in range(num_steps):
        forwards = [partial(_loss_of, model, batch) for batch in batches(step)]
        execution.run(forwards, lambda loss: loss / num_micro_batches, partial(_seed, step))
        execution.complete_step(1.0)
    streamed = {name: weight.clone() for name, weight in weights_of(execution.store)}
    streamed |= dict(model.named_buffers())
    peak_bytes = execution.device.peak_bytes
    assert peak_bytes is not None
    peak = peak_bytes / planned.plan.predicted_peak_bytes
    execution.close()
    execution.store.close()
    differing = [name for name, value in plain.items() if not torch.equal(value, streamed[name])]
    return Parity(len(planned.plan.split.layers), len(differing), peak)


def _train_plainly(
    architecture: Architecture,
    num_micro_batches: int,
    num_steps: int,
    autocast_dtype: torch.dtype | None,
) -> dict[str, torch.Tensor]:
    model = architecture.build()
    optimizer = _optimizer(model)
    for step in range(num_steps):
        for index, batch in enumerate(_batches(architecture, num_micro_batches, step)):
            _seed(step, index)
            with autocast(torch.device("cpu"), autocast_dtype):
                loss = _loss_of(model, batch)
            (loss / num_micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach() for name, value in _tensors(model).items()}


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def _batches(architecture: Architecture, num_micro_batches: int, step: int) -> list[object]:
    return [architecture.batch(10 * step + index, BATCH_SIZE) for index in range(num_micro_batches)]


def _loss_of(model: nn.Module, batch: object) -> torch.Tensor:
    assert isinstance(batch, dict)
    loss = model(**batch).loss
    assert isinstance(loss, torch.Tensor)
    return loss


def _seed(step: int, index: int) -> None:
    torch.manual_seed(100 * step + index)
