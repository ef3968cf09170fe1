"""Weights that stay on a device with memory of its own; the store gets them when it is asked to.

The CPU device with a slow link stands behind a link as a GPU does: the model computes with copies,
and the store's own bytes change by a flush alone.
"""

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from openwafer.training.store.update_rules import Lamb, Lion
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.execute.resident import (
    DeviceResidentExecution,
    ResidentExecution,
    foreach_bytes,
)
from tests.tables import case, checkerboard, some
from tests.training.stream.both_loops import differing, seed_of
from tests.training.stream.small_gpt import build_gpt, gpt_loss, gpt_run
from tests.training.stream_cuda.one_store import COEFFICIENT, OneStore, Optimize

DECAY = 0.9


def muon_beside_adamw(model: nn.Module) -> list[Optimizer]:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(vectors, lr=1e-2)]


OPTIMIZERS: dict[str, Optimize] = {
    "fused adamw": lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True)],
    "amsgrad": lambda m: [torch.optim.Adam(m.parameters(), lr=1e-2, amsgrad=True)],
    "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9)],
    "lion": lambda m: [Lion(m.parameters(), lr=1e-3)],
    "adafactor": lambda m: [torch.optim.Adafactor(m.parameters(), lr=1e-2)],
    "muon": muon_beside_adamw,
    "nadam": lambda m: [torch.optim.NAdam(m.parameters(), lr=1e-2)],
    "adagrad": lambda m: [torch.optim.Adagrad(m.parameters(), lr=1e-2, fused=True)],
    "asgd": lambda m: [torch.optim.ASGD(m.parameters(), lr=1e-2, t0=1)],
    "lamb": lambda m: [Lamb(m.parameters(), lr=1e-2)],
}
WAYS = {
    "device": (DeviceResidentExecution, DeviceResidentExecution),
    "device, host": (DeviceResidentExecution, ResidentExecution),
    "host, device": (ResidentExecution, DeviceResidentExecution),
}


def device() -> CpuDevice:
    return CpuDevice(link_bytes_per_second=1e9)


def train_plainly(
    optimize: Optimize, num_steps: int, resting: str | None = None
) -> tuple[AveragedModel, dict[str, torch.Tensor]]:
    """The average over the steps, and the weights after them."""
    model = build_gpt()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    optimizers = optimize(model)
    for step in range(num_steps):
        if resting is not None:
            model.get_submodule(resting).requires_grad_(step % 2 == 0)
        seed_of(step, 0)
        gpt_loss(model, gpt_run().batch(step, 0)).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(COEFFICIENT)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        average.update_parameters(model)
    return average, {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", some(OPTIMIZERS, "sgd", "fused adamw", "muon", "adafactor"))
def test_weights_are_those_of_the_plain_loop(name: str) -> None:
    run = OneStore(OPTIMIZERS[name])
    run.go_on(DeviceResidentExecution, device(), 3)
    _, expected = train_plainly(OPTIMIZERS[name], 3)
    assert differing({key: run.arrays()[key] for key in expected}, expected) == []


@pytest.mark.parametrize(("optimize", "way"), checkerboard(OPTIMIZERS, WAYS, one_in=8))
def test_a_run_may_go_on_in_the_other_way(
    optimize: Optimize, way: tuple[type[ResidentExecution], type[ResidentExecution]]
) -> None:
    mixed, whole = (OneStore(optimize, average_decay=DECAY) for _ in range(2))
    for execution in way:
        mixed.go_on(execution, device(), 2)
    whole.go_on(ResidentExecution, CpuDevice(), 4)
    assert differing(mixed.arrays(), whole.arrays()) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [case(*way, by_default=name == "host, device", id=name) for name, way in WAYS.items()],
)
def test_averages_move_where_a_step_leaves_weights_alone(
    first: type[ResidentExecution], second: type[ResidentExecution]
) -> None:
    run = OneStore(OPTIMIZERS["sgd"], average_decay=DECAY, resting="layers.1")
    run.go_on(first, device(), 4)
    run.go_on(second, device(), 4)
    average, _ = train_plainly(OPTIMIZERS["sgd"], 8, resting="layers.1")
    assert differing(run.averages(), dict(average.module.named_parameters())) == []


def test_the_store_changes_by_a_flush_alone() -> None:
    run = OneStore(OPTIMIZERS["sgd"])
    before = run.arrays()
    run.execute(DeviceResidentExecution, device(), 2)
    assert differing(run.arrays(), before) == []


def test_updates_count_as_applied_when_the_store_has_them() -> None:
    run = OneStore(OPTIMIZERS["sgd"])
    execution = run.execute(DeviceResidentExecution, device(), 1)
    calls: list[str] = []
    execution.on_updates_applied = lambda: calls.append("applied")
    execution.flush()
    execution.flush()
    assert calls == ["applied"]


@pytest.mark.parametrize(("options", "has_copies"), [({}, True), ({"fused": True}, False)])
def test_a_step_in_the_foreach_form_takes_a_tensor_a_parameter(
    options: dict[str, bool], has_copies: bool
) -> None:
    model = build_gpt()
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), **options)  # type: ignore[arg-type]
    assert foreach_bytes([optimizer]) == (num_bytes if has_copies else 0)
