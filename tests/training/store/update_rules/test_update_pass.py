"""The pass around a rule: masters, averages, and states that do not fit."""

import re
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adafactor, AdamW, Muon, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.update_rules import Lion, ParamUpdate, from_torch, update_parameter
from openwafer.training.store.update_rules.update_pass import (
    AVERAGE,
    LOW_BITS,
    TIE_BITS,
    Averaging,
    SplitMaster,
    join_master,
    split_master,
    state_specs,
)
from tests.tables import checkerboard
from tests.training.store.update_rules.side_by_side import Factory, build_rule

SHAPE = (63, 211)
F32, BF16 = torch.float32, torch.bfloat16

OPTIMIZERS: dict[str, Factory] = {
    "AdamW fused": partial(AdamW, lr=0.01, fused=True),
    "AdamW": partial(AdamW, lr=0.01),
    "SGD fused": partial(SGD, lr=0.1, momentum=0.9, fused=True),
    "Lion": partial(Lion, lr=0.01),
    "Adafactor": partial(Adafactor, lr=0.05),
    "Muon": partial(Muon, lr=0.02),
}


@dataclass
class StreamedWeight:
    """A bf16 weight with all that is kept for it, as the store has it."""

    weight: torch.Tensor
    states: dict[str, torch.Tensor]

    @classmethod
    def of(cls, master: torch.Tensor, optimizer: Optimizer) -> "StreamedWeight":
        (rule,) = from_torch(optimizer)
        specs = state_specs(rule, SHAPE, BF16, keeps_master=True, keeps_average=True)
        states = {s.name: torch.full(s.shape, s.fill, dtype=s.dtype) for s in specs}
        streamed = cls(torch.empty(SHAPE, dtype=BF16), states)
        split_master(master.detach().view(-1), streamed.parts())
        return streamed

    def parts(self) -> SplitMaster:
        return SplitMaster(
            self.weight.view(-1), self.states[LOW_BITS].view(-1), self.states[TIE_BITS]
        )

    def master(self) -> torch.Tensor:
        return join_master(self.parts(), torch.empty(self.weight.numel())).view(SHAPE)


@pytest.mark.parametrize(
    ("gradient_dtype", "scale", "name"), checkerboard((F32, BF16), (1.0, 0.3718), tuple(OPTIMIZERS))
)
def test_a_split_master_is_updated_like_the_fp32_master_it_is(
    name: str, scale: float, gradient_dtype: torch.dtype
) -> None:
    source = torch.Generator().manual_seed(5)
    master = torch.nn.Parameter(torch.randn(SHAPE, generator=source))
    optimizer = OPTIMIZERS[name]([master])
    streamed = StreamedWeight.of(master, optimizer)
    for step in range(10):
        gradient = torch.randn(SHAPE, generator=source).to(gradient_dtype)
        update = ParamUpdate(streamed.weight, gradient, streamed.states, step)
        (rule,) = from_torch(optimizer)
        update_parameter(rule, update, gradient_scale=scale, run_elements=4096)
        master.grad = gradient.float() * scale
        optimizer.step()
    assert torch.equal(streamed.master(), master)
    assert torch.equal(streamed.weight, master.to(BF16))


def test_averages_move_as_torch_moves_them() -> None:
    model = torch.nn.Linear(211, 63)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ours = {p: torch.zeros_like(p) for p in model.parameters()}
    for step in range(10):
        for parameter, average in ours.items():
            parameter.data.add_(torch.randn(parameter.shape))
            update = ParamUpdate(parameter.data, None, {AVERAGE: average}, 0)
            averaging = Averaging(0.9, num_averaged=step)
            update_parameter(build_rule("sgd"), update, averaging=averaging, run_elements=4096)
        theirs.update_parameters(model)
    assert all(map(torch.equal, ours.values(), theirs.module.parameters()))


def test_missed_moves_are_made_as_torch_makes_them() -> None:
    model = torch.nn.Linear(211, 63)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ours = torch.zeros_like(model.weight)
    for num_steps in (1, 7, 300):
        update = ParamUpdate(model.weight.data, torch.randn(63, 211), {AVERAGE: ours}, 0)
        num_averaged = int(theirs.n_averaged)
        for _ in range(num_steps):
            theirs.update_parameters(model)
        averaging = Averaging(0.9, num_averaged, num_missed=num_steps)
        update_parameter(build_rule("sgd", {"lr": 0.1}), update, averaging=averaging)
        theirs.update_parameters(model)
    assert torch.equal(ours, next(theirs.parameters()))


def test_the_average_is_that_of_the_updated_master() -> None:
    master = torch.nn.Parameter(torch.randn(SHAPE))
    streamed = StreamedWeight.of(master, AdamW([master]))
    update = ParamUpdate(streamed.weight, torch.randn(SHAPE), streamed.states, 0)
    update_parameter(build_rule("adamw"), update, averaging=Averaging(0.9, 0))
    assert torch.equal(streamed.states[AVERAGE], streamed.master())
    assert not torch.equal(streamed.states[AVERAGE], master)


def test_a_parameter_without_gradient_keeps_its_weight_and_states() -> None:
    weight, states = torch.ones(5), {"exp_avg": torch.ones(5), "exp_avg_sq": torch.ones(5)}
    update_parameter(build_rule("adamw"), ParamUpdate(weight, None, states, 3))
    assert all(torch.equal(array, torch.ones(5)) for array in (weight, *states.values()))


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ({}, "state 'exp_avg' is absent; the update of a weight of shape (5,) needs shape (5,)"),
        ({}, "note: states at hand: none"),
        ({"exp_avg": torch.zeros(4)}, "is of shape (4,) and torch.float32; the update"),
        ({"exp_avg": torch.zeros(5, dtype=BF16)}, "(5,) and torch.bfloat16; the update"),
        ({}, "help: what is kept is decided before the first step: do not change"),
    ],
)
def test_a_state_that_does_not_fit_is_an_error(states: dict[str, torch.Tensor], text: str) -> None:
    update = ParamUpdate(torch.ones(5), torch.ones(5), states, 0)
    with pytest.raises(OpenwaferError, match=re.escape(text)):
        update_parameter(build_rule("adamw"), update)


@pytest.mark.parametrize("run_elements", [0, 100])
def test_a_run_that_splits_a_cache_line_is_an_error(run_elements: int) -> None:
    update = ParamUpdate(torch.ones(5), torch.ones(5), {}, 0)
    with pytest.raises(OpenwaferError, match=f"run_elements is {run_elements}\n.*multiple of 64"):
        update_parameter(build_rule("adamw"), update, run_elements=run_elements)
