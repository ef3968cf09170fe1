"""Optimizers and schedulers of the present style, by their formulas."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.present import cstorch
from openwafer.training.frontends.present import lr_scheduler as lrs
from openwafer.training.frontends.present import weight_decay_scheduler as wds
from openwafer.training.store.update_rules import Lion
from tests.training.frontends.present_scripts import PlainScript, PresentScript

START = (2.0, -1.0)
GRADIENTS = ((0.5, 0.25), (-1.0, 0.5), (0.25, 0.0), (0.5, -0.25), (0.25, 1.0), (-0.5, 1.0))


def stepped(make: Callable[[list[nn.Parameter]], Optimizer]) -> torch.Tensor:
    cstorch.backend("CPU")
    weight = nn.Parameter(torch.tensor(START))
    optimizer = make([weight])
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    return weight.detach()


def adam_by_hand(decay: float, l2: float, eps: float) -> torch.Tensor:
    weights = torch.tensor(START, dtype=torch.float64)
    mean, square = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for t, gradient in enumerate(GRADIENTS, 1):
        g = torch.tensor(gradient, dtype=torch.float64) + l2 * weights
        mean = 0.9 * mean + 0.1 * g
        square = 0.999 * square + 0.001 * g * g
        rate = math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        weights = weights - 0.1 * (rate * mean / (square.sqrt() + eps) + decay * weights)
    return weights.float()


def test_adamw_adds_epsilon_to_the_uncorrected_moment() -> None:
    found = stepped(lambda p: cstorch.optim.AdamW(p, lr=0.1, eps=1e-2, weight_decay=0.1))
    torch.testing.assert_close(found, adam_by_hand(0.1, 0.0, 1e-2), rtol=1e-5, atol=1e-6)


def test_adam_decays_through_the_gradient() -> None:
    found = stepped(lambda p: cstorch.optim.Adam(p, lr=0.1, weight_decay=0.1))
    torch.testing.assert_close(found, adam_by_hand(0.0, 0.1, 1e-6), rtol=1e-5, atol=1e-6)


def test_the_decay_of_a_group_of_adam_goes_through_its_gradient() -> None:
    found = stepped(lambda p: cstorch.optim.Adam([{"params": p, "weight_decay": 0.1}], lr=0.1))
    torch.testing.assert_close(found, adam_by_hand(0.0, 0.1, 1e-6), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}]
)
def test_sgd_is_that_of_torch(options: dict[str, Any]) -> None:
    found = stepped(lambda p: cstorch.optim.SGD(p, lr=0.1, **options))
    torch.testing.assert_close(found, stepped(lambda p: torch.optim.SGD(p, lr=0.1, **options)))


def test_options_that_cannot_be_are_told() -> None:
    with pytest.raises(OpenwaferError, match=r"AdamW got lr=0\.1, betas=\(0\.9, 1\.0\)"):
        stepped(lambda p: cstorch.optim.AdamW(p, lr=0.1, betas=(0.9, 1.0)))


def optimizer(*groups: dict[str, Any]) -> Optimizer:
    cstorch.backend("CPU")
    params = [{"params": [nn.Parameter(torch.ones(1))], **group} for group in groups or [{}]]
    return cstorch.optim.SGD(params, lr=0.5)


def values(make: Callable[[Optimizer], Any], num: int, key: str = "lr") -> list[float]:
    """The value that each of the first steps takes."""
    chosen = optimizer()
    scheduler, found = make(chosen), list[float]()
    for _ in range(num):
        found.append(chosen.param_groups[0][key])
        chosen.step()
        scheduler.step()
    return found


SCHEDULES: dict[str, tuple[Callable[[Optimizer], Any], list[float]]] = {
    "constant": (lambda o: lrs.ConstantLR(o, learning_rate=0.3), [0.3] * 4),
    "linear": (
        lambda o: lrs.LinearLR(o, initial_learning_rate=0.0, end_learning_rate=0.4, total_iters=2),
        [0.0, 0.2, 0.4, 0.4],
    ),
    "polynomial": (lambda o: lrs.PolynomialLR(o, 1.0, 0.0, 4, power=2.0), [1.0, 0.5625, 0.25]),
    "polynomial-cycle": (
        lambda o: lrs.PolynomialLR(o, 1.0, 0.0, 4, cycle=True),
        [1.0, 0.75, 0.5, 0.25, 0.0],
    ),
    "exponential": (
        lambda o: lrs.ExponentialLR(o, initial_learning_rate=1.0, total_iters=2, decay_rate=0.25),
        [1.0, 0.5, 0.25],
    ),
    "staircase": (lambda o: lrs.ExponentialLR(o, 1.0, 2, 0.25, staircase=True), [1.0, 1.0, 0.25]),
    "inverse-time": (
        lambda o: lrs.InverseExponentialTimeDecayLR(o, 1.0, 1, 2, 0.5),
        [1.0, 0.8, 1 / 1.5],
    ),
    "inverse-root": (
        lambda o: lrs.InverseSquareRootDecayLR(o, 1.0, 2.0, warmup_steps=4),
        [1.0, 1.0, 1.0, 1.0, 1.0, 2 / math.sqrt(5)],
    ),
    "cosine": (
        lambda o: lrs.CosineDecayLR(
            o, initial_learning_rate=1.0, end_learning_rate=0.5, total_iters=2
        ),
        [1.0, 0.75, 0.5, 0.5],
    ),
    "multi-step": (lambda o: lrs.MultiStepLR(o, 1.0, 0.5, [1, 3]), [1.0, 0.5, 0.5, 0.25]),
    "step": (lambda o: lrs.StepLR(o, 1.0, 2, 0.5), [1.0, 1.0, 0.5, 0.5]),
    "annealing": (lambda o: lrs.CosineAnnealingLR(o, 1.0, 2), [1.0, 0.5, 0.0, 0.5]),
    "restarts": (lambda o: lrs.CosineAnnealingWarmRestarts(o, 1.0, 2), [1.0, 0.5, 1.0, 0.5]),
    "multiplicative": (lambda o: lrs.MultiplicativeLR(o, 1.0, 0.5), [1.0, 0.5, 0.25]),
    "piecewise": (
        lambda o: lrs.PiecewiseConstantLR(o, learning_rates=[0.3, 0.1], milestones=[2]),
        [0.3, 0.3, 0.1, 0.1],
    ),
    "sequential": (
        lambda o: lrs.SequentialLR(
            o, [lrs.LinearLR(o, 0.0, 1.0, 2), lrs.CosineDecayLR(o, 1.0, 0.0, 2)], milestones=[2]
        ),
        [0.0, 0.5, 1.0, 0.5, 0.0],
    ),
    "chained": (
        lambda o: lrs.ChainedScheduler([lrs.StepLR(o, 2.0, 1, 0.5), lrs.StepLR(o, 4.0, 2, 0.5)]),
        [2.0, 1.0, 0.25],
    ),
    "cyclic": (
        lambda o: lrs.CyclicLR(o, base_lr=0.0, max_lr=1.0, step_size_up=2, mode="triangular2"),
        [0.0, 0.5, 1.0, 0.5, 0.0, 0.25],
    ),
    "one-cycle": (
        lambda o: lrs.OneCycleLR(
            o, 0.1, max_lr=1.0, total_steps=10, pct_start=0.3, final_div_factor=10.0
        ),
        [0.1, 0.55, 1.0, 0.01 + 0.99 * (1 + math.cos(math.pi / 7)) / 2],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_of_step_k_is_the_value_at_k(name: str) -> None:
    make, expected = SCHEDULES[name]
    assert values(make, len(expected)) == pytest.approx(expected)


def test_a_weight_decay_has_schedules_too() -> None:
    def make(chosen: Optimizer) -> wds.CosineDecayWD:
        return wds.CosineDecayWD(chosen, 1.0, end_val=0.0, total_iters=2)

    assert values(make, 3, "weight_decay") == pytest.approx([1.0, 0.5, 0.0])


class Halving(lrs.LambdaLR):
    def set_value_lambda(self) -> list[Any]:
        return [lambda epoch: torch.pow(torch.tensor(0.5), epoch)]


def test_functions_of_a_script_make_a_rate() -> None:
    assert values(lambda o: Halving(o, 0.8), 3) == pytest.approx([0.8, 0.4, 0.2])


def test_a_scheduler_sets_groups_of_its_tags_alone() -> None:
    chosen = optimizer({"tags": "head"}, {})
    lrs.ConstantLR(chosen, 0.1, param_group_tags="head")
    lrs.ConstantLR(chosen, 0.2, param_group_tags=[None])
    assert [group["lr"] for group in chosen.param_groups] == [0.1, 0.2]


def test_groups_scale_a_rate() -> None:
    chosen = optimizer({"adjust_learning_rate": 0.5}, {})
    scaled = lrs.ScalePerParamLR(chosen, lrs.ConstantLR(chosen, 0.2))
    assert scaled.get_last_lr() == [0.1, 0.2]


def test_a_scheduler_goes_on_where_it_was() -> None:
    chosen = optimizer()
    lrs.StepLR(chosen, 1.0, 1, 0.5).load_state_dict({"last_epoch": torch.tensor(3)})
    assert chosen.param_groups[0]["lr"] == 0.125


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no-optimizer": (
        lambda: lrs.ConstantLR(3, 0.1),  # type: ignore[arg-type]
        "ConstantLR takes an optimizer, and got a int",
    ),
    "no-group": (
        lambda: lrs.ConstantLR(optimizer(), 0.1, param_group_tags="head"),
        "groups with one of the tags {'head'}, and no group",
    ),
    "milestones": (
        lambda: lrs.PiecewiseConstantLR(optimizer(), [0.1, 0.2], [1, 2]),
        "2 schedules follow each other, at 2 milestones",
    ),
    "mixed": (
        lambda: lrs.SequentialLR(o := optimizer(), [wds.ConstantWD(o, 0.1)], []),
        "SequentialLR takes schedulers of 'lr', and got a ConstantWD",
    ),
    "functions": (
        lambda: lrs.LambdaLR(optimizer(), 0.1),
        "LambdaLR has no set_value_lambda",
    ),
    "periods": (
        lambda: lrs.CosineAnnealingWarmRestarts(optimizer(), 0.1, 2, T_mult=2),
        "CosineAnnealingWarmRestarts has T_mult=2",
    ),
    "mode": (
        lambda: lrs.CyclicLR(optimizer(), 0.0, 1.0, mode="square"),
        "a cyclic schedule has the mode 'square'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_schedule_is_told(mistake: str) -> None:
    script, words = MISTAKES[mistake]
    with pytest.raises(OpenwaferError, match=words):
        script()


@pytest.mark.slow
def test_a_scheduled_loop_has_the_weights_of_the_plain_one() -> None:
    def scheduled(script: PlainScript) -> PlainScript:
        warm, down = lrs.LinearLR, lrs.CosineDecayLR
        chosen = script.optimizer
        parts: list[Any] = [warm(chosen, 0.0, 1e-2, 2), down(chosen, 1e-2, 1e-3, 2)]
        script.scheduler = lrs.SequentialLR(chosen, parts, [2])  # type: ignore[assignment]
        return script

    def make(model: nn.Module) -> Optimizer:
        return cstorch.optim.AdamW(model.parameters(), lr=0.1)

    plain, found = scheduled(PlainScript(make)), scheduled(PresentScript(make))
    assert found.train().losses == plain.train().losses


OTHERS: dict[str, tuple[type[Optimizer], type[Optimizer], dict[str, Any]]] = {
    "lion": (cstorch.optim.Lion, Lion, {"lr": 0.1, "weight_decay": 0.1}),
    "rmsprop": (cstorch.optim.RMSprop, torch.optim.RMSprop, {"lr": 0.1}),
    "rmsprop-centered": (
        cstorch.optim.RMSprop,
        torch.optim.RMSprop,
        {"lr": 0.1, "momentum": 0.9, "centered": True, "weight_decay": 0.1},
    ),
    "adagrad": (
        cstorch.optim.Adagrad,
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-6},
    ),
    "adadelta": (cstorch.optim.Adadelta, torch.optim.Adadelta, {"weight_decay": 0.1}),
    "asgd": (
        cstorch.optim.ASGD,
        torch.optim.ASGD,
        {"lr": 0.1, "lambd": 0.1, "t0": 1, "weight_decay": 0.1},
    ),
    "rprop": (cstorch.optim.Rprop, torch.optim.Rprop, {"lr": 0.1}),
    "radam": (cstorch.optim.RAdam, torch.optim.RAdam, {"lr": 0.1, "eps": 1e-6}),
    "radam-rectified": (
        cstorch.optim.RAdam,
        torch.optim.RAdam,
        {"lr": 0.1, "eps": 1e-6, "betas": (0.5, 0.8), "weight_decay": 0.1},
    ),
    "adamax": (cstorch.optim.Adamax, torch.optim.Adamax, {"lr": 0.1, "eps": 1e-6}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_optimizer_has_the_formula_of_its_namesake(name: str) -> None:
    made, like, options = OTHERS[name]
    found = stepped(lambda p: made(p, **options))
    torch.testing.assert_close(found, stepped(lambda p: like(p, **options)))


def test_nadam_has_the_momentum_of_this_step_twice() -> None:
    found = stepped(lambda p: cstorch.optim.NAdam(p, lr=0.1, eps=1e-2))
    weights = torch.tensor(START, dtype=torch.float64)
    mean, square, product = torch.zeros(2), torch.zeros(2), 1.0
    for t, gradient in enumerate(GRADIENTS, 1):
        g = torch.tensor(gradient, dtype=torch.float64)
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
        mu, coming = (0.9 * (1 - 0.5 * 0.96 ** (0.004 * s)) for s in (t, t + 1))
        product *= mu
        moved = coming * mean / (1 - product * mu * coming) + (1 - mu) * g / (1 - product)
        weights = weights - 0.1 * moved / ((square / (1 - 0.999**t)).sqrt() + 1e-2)
    torch.testing.assert_close(found, weights.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (4, 2, 3)])
def test_muon_steps_along_an_orthogonal_matrix(shape: tuple[int, ...]) -> None:
    cstorch.backend("CPU")
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(shape))
    weight.grad = torch.randn(shape)
    cstorch.optim.Muon([weight], lr=0.1, weight_decay=0.5).step()
    rate = 0.1 * 0.2 * max(shape[:2]) ** 0.5
    change = (torch.ones(shape) * (1 - 0.5 * rate) - weight.detach()) / rate
    # Its polynomial leaves singular values from 0.7 to 1.2.
    values = torch.linalg.svdvals(change.flatten(1))
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.3
    assert float((change * weight.grad).sum()) > 0


def test_muon_without_nesterov_is_that_of_torch() -> None:
    def muon(made: Callable[..., Optimizer], **others: Any) -> torch.Tensor:
        cstorch.backend("CPU")
        weight = nn.Parameter(torch.eye(3, 4))
        optimizer = made([weight], lr=0.1, weight_decay=0.1, nesterov=False, **others)
        for seed in range(3):
            weight.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
        return weight.detach()

    theirs = muon(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    torch.testing.assert_close(muon(cstorch.optim.Muon), theirs, rtol=2e-2, atol=2e-3)


def test_muon_takes_matrices() -> None:
    with pytest.raises(OpenwaferError, match=r"a weight of the shape \(2,\), and takes matrices"):
        stepped(cstorch.optim.Muon)


def test_lamb_bounds_the_norm_of_a_weight_and_corrects_no_moment() -> None:
    cstorch.backend("CPU")
    weight = nn.Parameter(torch.tensor([30.0, 40.0]))
    weight.grad = torch.tensor([1.0, -1.0])
    cstorch.optim.Lamb([weight], lr=0.1, eps=0.0).step()
    change = torch.tensor([0.1, -0.1]) / math.sqrt(0.001)
    expected = torch.tensor([30.0, 40.0]) - 0.1 * change * 10 / change.norm()
    torch.testing.assert_close(weight.detach(), expected)


def test_adafactor_factors_the_moment_of_a_matrix() -> None:
    cstorch.backend("CPU")
    start, gradient = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    weight = nn.Parameter(start.clone())
    weight.grad = gradient.clone()
    cstorch.optim.Adafactor([weight], lr=0.1, weight_decay=0.1).step()
    rows, columns = gradient.square().mean(1), gradient.square().mean(0)
    change = gradient / (rows[:, None] / rows.mean() * columns[None]).sqrt()
    change /= max(1.0, float(change.square().mean().sqrt()))
    rate = 0.1 * float(start.square().mean().sqrt())
    torch.testing.assert_close(weight.detach(), start * (1 - 0.1 * rate) - rate * change)


def test_what_adafactor_does_not_do_is_told() -> None:
    with pytest.raises(OpenwaferError, match="Adafactor got relative_step=True"):
        stepped(lambda p: cstorch.optim.Adafactor(p, lr=0.1, relative_step=True))


def factored(model: nn.Module) -> Optimizer:
    return cstorch.optim.Adafactor(model.parameters(), lr=0.01)


class Smaller(PresentScript):
    """On a device that a model with factored moments does not fit into either."""

    memory = "480KiB"


def test_a_factored_moment_streams() -> None:
    plain, found = PlainScript(factored).train(), Smaller(factored).train()
    assert found.losses == plain.losses
