"""Weights that stay on a device with memory of its own, which the store gets when asked for them.

The CPU device with a slow link stands on the far side of a link as a GPU does: what the model
computes with are copies, and the store's own bytes change by a flush alone.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import ParameterStore
from openwafer.training.store.update_rules import Lion
from openwafer.training.stream.assemble import Planned, make_device
from openwafer.training.stream.device_resident import DeviceResidentExecution, foreach_bytes
from openwafer.training.stream.execution import Execution, ResidentExecution, StepContext
from openwafer.training.stream.plan import Mode
from openwafer.training.stream.records import borrowed_parts, weights_of, write_weights
from openwafer.training.stream.schedule import UpdateTiming
from openwafer.training.stream.updates import Updater
from tests.training.stream.both_loops import (
    STREAMED,
    Parameters,
    Run,
    differing,
    plan,
    seed_of,
    train_plainly,
)
from tests.training.stream.small_gpt import build_gpt, draw_tokens, gpt_loss, gpt_run

RESIDENT = replace(STREAMED, mode=Mode.RESIDENT, link_bytes_per_second=1e9)


def muon_beside_adamw(model: nn.Module) -> list[Optimizer]:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(vectors, lr=1e-2)]


Optimize = Callable[[nn.Module], list[Optimizer]]
OPTIMIZERS: dict[str, Optimize] = {
    "fused adamw": lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True)],
    "amsgrad": lambda m: [torch.optim.Adam(m.parameters(), lr=1e-2, amsgrad=True)],
    "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9)],
    "lion": lambda m: [Lion(m.parameters(), lr=1e-3)],
    "adafactor": lambda m: [torch.optim.Adafactor(m.parameters(), lr=1e-2)],
    "muon": muon_beside_adamw,
}


class Resident:
    """A model whose weights stay on a device, over a store that may outlive it."""

    def __init__(
        self,
        kind: type[ResidentExecution],
        optimize: Optimize,
        store: ParameterStore | None = None,
        num_updates: dict[str, int] | None = None,
        average_decay: float | None = None,
    ) -> None:
        self.model = build_gpt()
        self.updater = Updater(optimize(self.model), self.model, average_decay=average_decay)
        self.updater.num_updates = dict(num_updates or {})
        self.planned = planned_run(average_decay)
        self.store = store or self._filled_store()
        device = make_device(self.planned.options)
        context = StepContext(UpdateTiming.ON_PUSH, torch.enable_grad)
        self.execution: Execution = kind(self.model, self.store, self.updater, device, context)
