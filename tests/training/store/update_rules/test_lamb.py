"""LAMB against the published algorithm, written out element by element."""

import math

import torch

from openwafer.training.store.update_rules import Lamb


def _published(weights: list[float], gradients: list[list[float]]) -> list[float]:
    """Algorithm 2 of arXiv 1904.00962: lr 0.1, betas 0.9 and 0.99, eps 1e-6, decay 0.3."""
    size = len(weights)
    m, v = [0.0] * size, [0.0] * size
    for time, step in enumerate(gradients, 1):
        m = [0.9 * old + 0.1 * g for old, g in zip(m, step, strict=True)]
        v = [0.99 * old + 0.01 * g * g for old, g in zip(v, step, strict=True)]
        first, second = 1 - 0.9**time, 1 - 0.99**time
        r = [a / first / (math.sqrt(b / second) + 1e-6) for a, b in zip(m, v, strict=True)]
        u = [a + 0.3 * w for a, w in zip(r, weights, strict=True)]
        ratio = math.hypot(*weights) / math.hypot(*u)
        weights = [w - 0.1 * ratio * a for w, a in zip(weights, u, strict=True)]
    return weights


def test_twenty_steps_follow_the_published_algorithm() -> None:
    gradients = torch.randn(20, 50, generator=torch.Generator().manual_seed(3)).double()
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 50, dtype=torch.float64))
    expected = _published(weight.tolist(), gradients.tolist())
    optimizer = Lamb([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.3)
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
    torch.testing.assert_close(weight.tolist(), expected, rtol=1e-12, atol=1e-14)


def test_weights_of_zero_begin_to_move() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.ones(3)
    assert Lamb([weight], lr=0.5).step(lambda: 2.5) == 2.5
    torch.testing.assert_close(weight.detach(), torch.full((3,), -0.5))
