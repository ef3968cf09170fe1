"""Every rule makes the bits of the torch optimizer it was read from."""

from functools import partial

import pytest
import torch
from torch.optim import SGD, Adafactor, Adam, AdamW, Muon
from torch.optim.lr_scheduler import CosineAnnealingLR

from openwafer.training.store.update_rules import Lion, ParamUpdate, from_torch, update_parameter
from openwafer.training.store.update_rules.translation import AdamRule
from tests.tables import checkerboard
from tests.training.store.update_rules.side_by_side import (
    Factory,
    SideBySide,
    gradients_of,
    parameters,
    run_side_by_side,
)

MATRICES = ((1, 1), (63, 5), (40, 130), (130, 40))

OPTIMIZERS: dict[str, Factory] = {
    "AdamW fused": partial(AdamW, lr=0.01, fused=True),
    "AdamW": partial(AdamW, lr=0.01),
    "AdamW foreach": partial(AdamW, lr=0.01, foreach=True),
    "AdamW fused amsgrad": partial(AdamW, lr=0.01, amsgrad=True, maximize=True, fused=True),
    "AdamW amsgrad": partial(AdamW, lr=0.01, amsgrad=True, betas=(0.8, 0.95)),
    "AdamW tensor lr": partial(AdamW, lr=torch.tensor([0.01])),
    "AdamW tensor lr fused": partial(AdamW, lr=torch.tensor(0.01), fused=True),
    "AdamW tensor betas": partial(AdamW, betas=(torch.tensor(0.9), torch.tensor(0.99))),
    "Adam decay fused": partial(Adam, lr=0.01, weight_decay=0.1, fused=True),
    "Adam decay maximize": partial(Adam, lr=0.01, weight_decay=0.1, maximize=True),
    "Adam decoupled": partial(Adam, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "SGD": partial(SGD, lr=0.1, weight_decay=0.01),
    "SGD fused": partial(SGD, lr=0.1, fused=True),
    "SGD dampening": partial(SGD, lr=0.1, momentum=0.9, dampening=0.3),
    "SGD dampening fused": partial(SGD, lr=0.1, momentum=0.9, dampening=0.3, fused=True),
    "SGD nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD nesterov fused": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "SGD foreach": partial(SGD, lr=0.1, momentum=0.9, foreach=True, maximize=True),
    "SGD tensor lr": partial(SGD, lr=torch.tensor(0.1), momentum=0.9),
    "SGD tensor decay": partial(SGD, lr=0.1, weight_decay=torch.tensor(0.1)),
    "Lion": partial(Lion, lr=0.01, weight_decay=0.1),
    "Adafactor": partial(Adafactor, lr=0.05),
    "Adafactor foreach": partial(Adafactor, lr=0.05, foreach=True, weight_decay=0.1),
    "Adafactor eps": partial(Adafactor, eps=(1e-6, 1e-2), d=1.5, weight_decay=0.1, maximize=True),
    "Adafactor tensor lr": partial(Adafactor, lr=torch.tensor(0.05)),
}

MUONS: dict[str, Factory] = {
    "Muon": partial(Muon, lr=0.02),
    "Muon adjusted": partial(Muon, lr=0.02, nesterov=False, adjust_lr_fn="match_rms_adamw"),
    "Muon three steps": partial(Muon, lr=0.02, ns_steps=3),
}


FUSED_AND_NOT = ["AdamW fused", "AdamW", "SGD nesterov fused", "Lion"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_are_equal(name: str) -> None:
    assert run_side_by_side(OPTIMIZERS[name], parameters()) == []


@pytest.mark.parametrize("name", MUONS)
def test_ten_steps_of_muon_are_equal(name: str) -> None:
    assert run_side_by_side(MUONS[name], parameters(MATRICES)) == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_scaling_inside_the_pass_equals_scaled_gradients(name: str) -> None:
    assert run_side_by_side(OPTIMIZERS[name], parameters(), num_steps=3, scale=0.3718) == []


def test_muon_scales_inside_the_pass_too() -> None:
    assert run_side_by_side(MUONS["Muon"], parameters(MATRICES), num_steps=3, scale=0.3718) == []


@pytest.mark.parametrize(
    ("name", "num_threads", "run_elements"),
    checkerboard(FUSED_AND_NOT, (1, 3), (64, 4160, 1 << 19)),
)
def test_neither_runs_nor_threads_change_the_bits(
    name: str, num_threads: int, run_elements: int
) -> None:
    params = parameters(((101, 997),))
    both = SideBySide(OPTIMIZERS[name](params), run_elements)
    torch.set_num_threads(num_threads)
    both.step(gradients_of(params, 0), 0.5003)
    assert both.differences() == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["AdamW fused", "AdamW", "SGD nesterov", "Lion"])
def test_other_dtypes_are_equal(name: str, dtype: torch.dtype) -> None:
    params = parameters(((17,), (101, 211)), dtype)
    assert run_side_by_side(OPTIMIZERS[name], params, num_steps=3, scale=0.5) == []


@pytest.mark.parametrize("name", ["AdamW fused", "AdamW", "SGD dampening", "Adafactor"])
def test_a_parameter_may_skip_steps(name: str) -> None:
    params = parameters(((17,), (63, 5), (4, 9)))
    both = SideBySide(OPTIMIZERS[name](params))
    for step in range(12):
        gradients = gradients_of(params, step)
        both.step({p: gradients[p] for i, p in enumerate(params) if (step + i) % 3})
    assert both.differences() == []


def test_an_empty_parameter_is_updated_to_nothing() -> None:
    assert run_side_by_side(OPTIMIZERS["AdamW fused"], parameters(((0, 3),)), scale=0.5) == []


def test_groups_keep_their_own_hyper_parameters() -> None:
    first, second, third = parameters(((17,), (63, 5), (4, 9)))
    groups = [
        {"params": [first, third], "lr": 0.1, "weight_decay": 0.0},
        {"params": [second], "betas": (0.5, 0.6), "fused": False},
    ]
    both = SideBySide(AdamW(groups, lr=0.003, weight_decay=0.2, fused=True))
    for step in range(10):
        both.step(gradients_of([first, second, third], step))
    assert both.differences() == []


@pytest.mark.parametrize("lr", [0.05, torch.tensor(0.05)])
def test_a_scheduler_moves_the_learning_rate(lr: float | torch.Tensor) -> None:
    params = parameters(((17,), (63, 5)))
    both = SideBySide(AdamW(params, lr=lr))
    scheduler = CosineAnnealingLR(both.optimizer, T_max=10)
    for step in range(12):
        both.step(gradients_of(params, step))
        scheduler.step()
    assert both.differences() == []


def test_changes_after_reading_do_not_reach_the_rules() -> None:
    optimizer = AdamW(parameters(((3,),)), lr=torch.tensor(0.5), fused=True)
    (rule,) = from_torch(optimizer)
    optimizer.param_groups[0]["lr"].fill_(0.125)
    assert isinstance(rule, AdamRule)
    assert rule.lr == 0.5


@pytest.mark.parametrize("name", ["AdamW", "AdamW fused", "SGD fused", "Adafactor"])
def test_a_gradient_of_any_strides_is_taken(name: str) -> None:
    (weight,) = parameters(((40, 130),))
    both = SideBySide(OPTIMIZERS[name]([weight]))
    both.step({weight: gradients_of(parameters(((130, 40),)), 0).popitem()[1].T})
    assert both.differences() == []


@pytest.mark.parametrize("scale", [1.0, 0.3718])
@pytest.mark.parametrize("name", FUSED_AND_NOT)
def test_a_bf16_gradient_of_an_fp32_weight_is_taken_as_fp32(name: str, scale: float) -> None:
    (weight,) = parameters(((101, 211),))
    both = SideBySide(OPTIMIZERS[name]([weight]))
    narrow = gradients_of([weight], 0)[weight].to(torch.bfloat16)
    (rule,), kept = from_torch(both.optimizer), both.stored[weight]
    update = ParamUpdate(kept.weight, narrow, kept.states, 0)
    update_parameter(rule, update, gradient_scale=scale, run_elements=4096)
    weight.grad = narrow.float() * scale
    both.optimizer.step()
    assert both.differences() == []
