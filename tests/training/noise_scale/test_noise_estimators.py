"""Signal and noise from squared norms at two batch sizes."""

import math

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.noise_scale import (
    NoiseEstimate,
    SmoothedNoise,
    estimate_from_examples,
    estimate_noise,
)


def gradients(num_examples: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(num_examples, 6, generator=generator, dtype=torch.float64)
    return torch.arange(6) + noise * torch.tensor([3.0, 1.0, 2.0, 5.0, 1.0, 4.0])


def test_the_means_of_two_batch_sizes_give_back_signal_and_noise() -> None:
    """By E|G_B|^2 = |G|^2 + tr(Sigma) / B, with |G|^2 = 3 and tr(Sigma) = 40."""
    estimate = estimate_noise(3 + 40 / 4, 3 + 40 / 32, num_small=4, num_big=32)
    assert (estimate.signal, estimate.noise) == pytest.approx((3, 40))


def test_noise_from_single_examples_is_the_trace_of_their_covariance() -> None:
    """The sample covariance, with one less than the number of examples, is unbiased."""
    g_BD = gradients(5, seed=0)
    mean_D = g_BD.mean(0)
    parts = (g_BD / 5).square().sum().item()
    estimate = estimate_from_examples(parts, mean_D.square().sum().item(), 5)
    covariance = torch.cov(g_BD.T)
    assert estimate.noise == pytest.approx(covariance.trace().item())
    unbiased = mean_D.square().sum() - covariance.trace() / 5
    assert estimate.signal == pytest.approx(unbiased.item())


@pytest.mark.parametrize(("num_small", "num_big"), [(1, 8), (2, 8), (4, 32)])
def test_smoothed_means_of_drawn_gradients_meet_the_true_noise_scale(
    num_small: int, num_big: int
) -> None:
    true_signal, true_noise = 55.0, 9 + 1 + 4 + 25 + 1 + 16
    smoothed = SmoothedNoise(0.999)
    for seed in range(6000):
        g_BD = gradients(num_big, seed)
        parts = g_BD.reshape(-1, num_small, 6).mean(1).square().sum(1).mean().item()
        whole = g_BD.mean(0).square().sum().item()
        smoothed.add(estimate_noise(parts, whole, num_small=num_small, num_big=num_big))
    assert smoothed.noise_scale == pytest.approx(true_noise / true_signal, rel=0.05)


def test_means_of_signal_and_noise_are_taken_apart() -> None:
    smoothed = SmoothedNoise(0.75)
    found = [smoothed.noise_scale]
    for estimate in (NoiseEstimate(1.0, 8.0), NoiseEstimate(5.0, 4.0)):
        smoothed.add(estimate)
        found.append(smoothed.noise_scale)
    assert found == [None, 8.0, 3.5]
    assert (smoothed.signal, smoothed.noise) == (2.0, 7.0)


def test_a_signal_lost_in_noise_has_no_noise_scale() -> None:
    smoothed = SmoothedNoise(0.5)
    found = []
    for signal in (-1.0, 3.0):
        smoothed.add(NoiseEstimate(signal, 8.0))
        found.append(smoothed.noise_scale)
    assert found == [None, 8.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_without_a_finite_norm_is_passed_over(bad: float) -> None:
    smoothed = SmoothedNoise(0.5)
    smoothed.add(NoiseEstimate(2.0, 8.0))
    smoothed.add(NoiseEstimate(bad, 8.0))
    assert (smoothed.signal, smoothed.noise) == (2.0, 8.0)


def test_one_example_does_not_tell_noise_from_signal() -> None:
    with pytest.raises(OpenwaferError, match="gradients of 1 and of 1 examples do not tell"):
        estimate_from_examples(1.0, 1.0, 1)


def test_a_decay_outside_of_its_range_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"is 1.0, not in \[0, 1\)"):
        SmoothedNoise(1.0)
