"""Loss scaling against torch.amp.GradScaler, its oracle."""

from typing import Any

import pytest
import torch

from openwafer.training.step import GradientReport, LossScaler, LossScaling, StepGradients
from openwafer.training.torch_private import FakeTensorMode, TorchDispatchMode


class TorchLoop:
    """One weight under GradScaler, which tells whether its optimizer ran."""

    def __init__(self, config: LossScaling) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.scaler = torch.amp.GradScaler(
            "cpu",
            init_scale=config.initial_scale,
            growth_factor=config.growth_factor,
            backoff_factor=config.backoff_factor,
            growth_interval=config.growth_interval,
        )

    def step(self, gradient: torch.Tensor) -> tuple[torch.Tensor, float]:
        self.scaler.scale(torch.zeros(()))
        self.weight.grad = gradient.clone()
        self.scaler.unscale_(self.optimizer)
        unscaled = self.weight.grad.clone()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return unscaled, self.scaler.get_scale()


def scaled_gradients() -> StepGradients:
    return StepGradients(is_clipped=True, is_scaled=True)


def gradients(num_steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randn(3, generator=generator) * 1e4 for _ in range(num_steps)]
    for index in range(0, num_steps, 7):
        drawn[index][1] = float("inf") if index % 2 else float("nan")
    return drawn


@pytest.mark.parametrize(
    "config",
    [LossScaling(growth_interval=2), LossScaling(3.7, 1.3, 0.77, 3), LossScaling(1e38, 2.0)],
)
def test_scale_and_gradients_follow_grad_scaler_bit_for_bit(config: LossScaling) -> None:
    scaler, scaled, loop = LossScaler(config), scaled_gradients(), TorchLoop(config)
    for gradient in gradients(40):
        expected, expected_scale = loop.step(gradient)
        scaled.begin(scaler.scale)
        mine = gradient.clone()
        scaled.watch({"weight": mine})
        scaler.end_step(has_overflowed=scaled.has_overflowed)
        assert torch.equal(mine.nan_to_num(), expected.nan_to_num())
        assert scaler.scale == expected_scale


def test_one_value_that_is_not_finite_makes_the_step_an_overflow() -> None:
    scaled = scaled_gradients()
    scaled.watch({"first": torch.ones(2), "second": torch.tensor([1.0, float("inf")])})
    scaled.watch({"third": torch.ones(5)})
    assert scaled.report.has_overflowed


def test_an_overflow_is_forgotten_with_its_pass() -> None:
    scaled = scaled_gradients()
    scaled.watch({"weight": torch.tensor([float("nan")])})
    scaled.begin(1.0)
    assert not scaled.has_overflowed


def test_an_overflow_on_another_system_is_one_of_the_step() -> None:
    scaled = scaled_gradients()
    scaled.add(GradientReport(has_overflowed=True))
    assert scaled.has_overflowed


def test_norms_are_those_of_gradients_without_the_scale() -> None:
    scaled = scaled_gradients()
    scaled.begin(1024.0)
    scaled.watch({"weight": torch.tensor([3.0, 4.0]) * 1024.0})
    assert scaled.norms == {"weight": torch.tensor(5.0)}


def test_a_restored_scaler_goes_on_where_the_other_stopped() -> None:
    config = LossScaling(3.7, 1.3, 0.77, 3)
    first, second = LossScaler(config), LossScaler(config)
    for _ in range(5):
        first.end_step(has_overflowed=False)
    second.restore(first.state())
    for scaler in (first, second):
        scaler.end_step(has_overflowed=False)
    assert first.state() == second.state() != LossScaler(config).state()


def test_a_scaling_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"backoff_factor: expected between 0 and 1, found 2"):
        LossScaling(backoff_factor=2.0)


class Copies(TorchDispatchMode):
    """Counts what goes from one device to another, for which a host waits."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += "copy" in func.name()
        return func(*args, **(kwargs or {}))


def test_gradients_on_a_gpu_are_unscaled_without_a_wait() -> None:
    scaled = scaled_gradients()
    scaled.begin(3.0)
    with FakeTensorMode(), Copies() as copies:  # type: ignore[no-untyped-call]
        scaled.watch({"weight": torch.ones(2, device="cuda")})
    assert copies.number == 0
