"""Models that others have changed, with losses and weights that hang on their modules."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from openwafer.training.plan_record import Activations
from tests.tables import checkerboard
from tests.training.stream.foreign_loops import (
    SIZE,
    Lines,
    Loop,
    Small,
    are_equal,
    new_loop,
    outcome,
    stream,
)

Change = Callable[[Small], object]


def inner(model: Small) -> nn.Module:
    return model.get_submodule("layers.1.0")


def normalised_weights(model: Small) -> None:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        weight_norm(inner(model))
        weight_norm(model.inlet)


def pruned(model: Small) -> None:
    prune.l1_unstructured(inner(model), "weight", 0.3)
    prune.random_unstructured(model.inlet, "weight", 0.3)


CHANGES: dict[str, Change] = {
    "weight_norm": normalised_weights,
    "prune": pruned,
    "spectral_norm": lambda model: spectral_norm(inner(model)),
    "parametrized weight_norm": lambda model: parametrizations.weight_norm(inner(model)),
    "parametrized spectral_norm": lambda model: parametrizations.spectral_norm(inner(model)),
    "parametrized orthogonal": lambda model: parametrizations.orthogonal(inner(model)),
}


def changed(change: Change) -> Callable[[], Small]:
    def build() -> Small:
        model = Small()
        change(model)
        return model

    return build


def trains(loop: Loop) -> None:
    loop.train(2)


@pytest.mark.parametrize(
    ("change", "policy"), checkerboard(CHANGES, (Activations.KEEP, Activations.RECOMPUTE), one_in=4)
)
def test_a_changed_model_learns_what_it_learns_plainly(change: Change, policy: Activations) -> None:
    found = outcome(trains, build=changed(change), policy=policy)
    assert are_equal(found, outcome(trains, build=changed(change), streams=False))


class Routed(nn.Module):
    """Layers that leave a loss of their routers on themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Router() for _ in range(3))
        self.head = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.gate = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)
        self.aux_loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        self.aux_loss = shares.mean(0).pow(2).sum()
        return self.dense(x).tanh() * shares.amax(-1, keepdim=True)  # type: ignore[no-any-return]


def auxiliary_loss(loop: Loop) -> Tensor:
    losses = [one.aux_loss for one in loop.model.modules() if isinstance(one, Router)]
    return torch.stack([loss for loss in losses if loss is not None]).sum()


def balances(loop: Loop) -> None:
    for step in range(2):
        (loop.loss(step) + 0.1 * auxiliary_loss(loop)).backward()
        loop.step()


def balances_alone(loop: Loop) -> None:
    loop.loss(1)
    auxiliary_loss(loop).backward()
    loop.step()


@pytest.mark.parametrize(
    ("lines", "policy"),
    checkerboard(
        {lines.__name__: lines for lines in (balances, balances_alone)}, Activations, one_in=3
    ),
)
def test_losses_left_on_modules_count(lines: Lines, policy: Activations) -> None:
    found = outcome(lines, build=Routed, policy=policy)
    assert are_equal(found, outcome(lines, build=Routed, streams=False))


def averaged(*, streams: bool) -> list[Tensor]:
    loop = new_loop()
    averages = [
        AveragedModel(loop.model),
        AveragedModel(loop.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    ]
    with stream(loop) if streams else nullcontext():
        for _ in range(3):
            loop.train(1)
            for average in averages:
                average.update_parameters(loop.model)
    return [p.detach() for average in averages for p in average.parameters()]


def test_averages_made_before_the_stream_are_moved_as_ever() -> None:
    assert are_equal(averaged(streams=True), averaged(streams=False))


def with_a_part(*, streams: bool) -> list[Tensor]:
    loop = new_loop()
    loop.optimizer = torch.optim.AdamW(loop.parameters[:4], lr=1e-2, fused=True)
    norms = []
    with stream(loop) if streams else nullcontext():
        for step in range(3):
            loop.backward(step)
            norms.append(nn.utils.clip_grad_norm_(loop.parameters, 0.1))
            loop.step()
        return norms + [p.grad.clone() for p in loop.parameters if p.grad is not None]


def test_gradients_of_what_no_optimizer_has_stay_and_count() -> None:
    assert are_equal(with_a_part(streams=True), with_a_part(streams=False))
