"""What a hook between steps writes is what a plain loop writes after its optimizer's step."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import Session
from openwafer.training.store.layout import Part
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.execute.execution import StepEnd
from openwafer.training.stream.execute.resident import DeviceResidentExecution, ResidentExecution
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import checkerboard
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_parameters,
    tiny_config,
)
from tests.training.stream.both_loops import seed_of
from tests.training.stream.small_gpt import build_gpt, gpt_loss, gpt_run
from tests.training.stream_cuda.one_store import COEFFICIENT, OneStore
from tests.training.stream_cuda.test_device_resident import OPTIMIZERS, device


def prune(weight: torch.Tensor) -> None:
    """Zero the half of a matrix that is nearest to zero."""
    if weight.ndim == 2:
        weight[weight.abs() < weight.abs().median()] = 0


def prune_model(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            prune(parameter)


def prune_records(end: StepEnd) -> None:
    for record, layout in end.records.items():
        with end.lent(record) as arrays:
            for place in layout.parts[Part.WEIGHTS]:
                prune(arrays.tensor(place.spec.name, Part.WEIGHTS))


@pytest.mark.parametrize(
    ("tier", "clip_norm"), checkerboard((StoreTier.DRAM, StoreTier.DISK), (None, 1.0))
)
def test_weights_pruned_between_steps_are_those_of_the_plain_loop(
    data: TinyData, tmp_path: Path, tier: StoreTier, clip_norm: float | None
) -> None:
    config = replace(tiny_config(data, tmp_path, tier), clip_norm=clip_norm)
    session = Session(config, console=quiet())
    session.between_steps(prune_records)
    assert differing(saved_parameters(session.train()), plain_loop(config, prune_model)) == []


def test_a_hook_is_called_as_often_as_was_asked(data: TinyData, tmp_path: Path) -> None:
    steps: list[int] = []
    session = Session(tiny_config(data, tmp_path), console=quiet())
    session.between_steps(lambda end: steps.append(end.steps_applied), every=2)
    session.train()
    assert steps == [2, 4]


@pytest.mark.parametrize("kind", [ResidentExecution, DeviceResidentExecution])
def test_resident_weights_take_what_a_hook_writes(kind: type[ResidentExecution]) -> None:
    run = OneStore(OPTIMIZERS["fused adamw"], on_step=prune_records)
    run.go_on(kind, device() if kind is DeviceResidentExecution else CpuDevice(), 3)
    expected = plainly_pruned(3)
    assert differing({name: run.arrays()[name] for name in expected}, expected) == []


def plainly_pruned(num_steps: int) -> Mapping[str, torch.Tensor]:
    model = build_gpt()
    [optimizer] = OPTIMIZERS["fused adamw"](model)
    for step in range(num_steps):
        seed_of(step, 0)
        gpt_loss(model, gpt_run().batch(step, 0)).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(COEFFICIENT)
        optimizer.step()
        optimizer.zero_grad()
        prune_model(model)
    return dict(model.named_parameters())


def test_a_hook_that_is_never_called_is_refused(data: TinyData, tmp_path: Path) -> None:
    session = Session(tiny_config(data, tmp_path), console=quiet())
    session.between_steps(prune_records, every=0)
    with pytest.raises(OpenwaferError, match="every 0 steps"):
        session.train()
