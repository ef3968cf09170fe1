"""A user's own loop over any model, plain or streamed, and all that it leaves in the model."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Activations, PlanRecord
from tests.training.stream.both_loops import STREAMED
from tests.training.stream.layers_with_state import WIDTH

BUDGET = "1MiB"


@dataclass(frozen=True)
class Way:
    """How a loop runs: plainly, or streamed under a policy and a budget."""

    is_streamed: bool = True
    policy: Activations | None = None
    budget: str = BUDGET


PLAINLY = Way(is_streamed=False)
WAYS = {
    "recompute": Way(policy=Activations.RECOMPUTE),
    "offload": Way(policy=Activations.OFFLOAD),
    "keep": Way(policy=Activations.KEEP),
    "planned": Way(),
}


@dataclass(frozen=True)
class Left:
    """What a loop leaves.

    Attributes:
        losses: of every step.
        values: parameters, buffers, and what else the modules hold that is a tensor.
        plain: other attributes of the modules, as text.
        policies: of the layers, where they streamed.
    """

    losses: list[float]
    values: dict[str, Tensor]
    plain: dict[str, str]
    plan: PlanRecord | None = None


Step = Callable[[nn.Module, int], Tensor]


def one_backward(model: nn.Module, step: int) -> Tensor:
    """The step of most loops; returns the loss."""
    torch.manual_seed(step)
    loss: Tensor = model(torch.randn(2, 3, WIDTH))
    loss.backward()
    return loss


def run_loop(
    build: Callable[[], nn.Module], way: Way, step: Step = one_backward, num_steps: int = 3
) -> Left:
    """Train a fresh model."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = build()
    is_real = not any(parameter.is_complex() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=is_real)
    options = replace(STREAMED, default_activations=way.policy, min_layer_bytes=1)
    streamed = None
    if way.is_streamed:
        streamed = stream_weights(model, optimizer, device_memory=way.budget, options=options)
    losses = []
    for number in range(num_steps):
        losses.append(step(model, number).item())
        optimizer.step()
        optimizer.zero_grad()
    if streamed is not None:
        streamed.close()
    return Left(losses, _values(model), _plain(model), streamed.plan if streamed else None)


def differing(found: Left, expected: Left) -> list[str]:
    """Names of everything that is not equal bit for bit."""
    assert found.values.keys() == expected.values.keys()
    names = [n for n, value in expected.values.items() if not torch.equal(found.values[n], value)]
    names += [name for name, text in expected.plain.items() if found.plain.get(name) != text]
    return names + (["losses"] if found.losses != expected.losses else [])


def _attributes(model: nn.Module) -> dict[str, Any]:
    of_torch = vars(nn.Module())
    return {
        f"{path}.{key}": value
        for path, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in of_torch and not key.startswith("forward")
    }


def _values(model: nn.Module) -> dict[str, Tensor]:
    held = _attributes(model).items()
    named = chain(model.named_parameters(), model.named_buffers(), held)
    return {name: value.detach().clone() for name, value in named if isinstance(value, Tensor)}


def _plain(model: nn.Module) -> dict[str, str]:
    plain = (bool, int, float, str, list, tuple, dict, set, np.ndarray)
    return {
        name: repr(value)
        for name, value in _attributes(model).items()
        if isinstance(value, plain) or hasattr(value, "append")
    }
