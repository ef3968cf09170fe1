"""Lion against the published algorithm, written out element by element."""

import math

import torch

from openwafer.training.store.update_rules import Lion


def _published(weights: list[float], gradients: list[list[float]]) -> list[float]:
    """Algorithm 2 of arXiv 2302.06675 with lr 0.1, betas 0.9 and 0.99, decay 0.3."""
    momenta = [0.0] * len(weights)
    for step in gradients:
        for i, g in enumerate(step):
            c = 0.9 * momenta[i] + 0.1 * g
            sign = math.copysign(1.0, c) if c else 0.0
            weights[i] -= 0.1 * (sign + 0.3 * weights[i])
            momenta[i] = 0.99 * momenta[i] + 0.01 * g
    return weights


def test_twenty_steps_follow_the_published_algorithm() -> None:
    gradients = torch.randn(20, 50, generator=torch.Generator().manual_seed(3)).double()
    gradients[:, 0] = 0.0
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 50, dtype=torch.float64))
    expected = _published(weight.tolist(), gradients.tolist())
    optimizer = Lion([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.3)
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
    torch.testing.assert_close(weight.tolist(), expected, rtol=1e-13, atol=1e-15)
