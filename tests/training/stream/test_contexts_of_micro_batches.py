"""Micro-batches that take turns at a layer are each in the contexts that their forward opened."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from openwafer.training.stream.execute.thread_state import foreign_hooks
from tests.tables import checkerboard
from tests.training.stream.both_loops import STREAMED, Run, StreamedRun, differing_under, plan

WIDTH = 24


class Model(nn.Module):
    """Four layers, of which the first two are called in a context."""

    kind: Callable[[], nn.Module] = partial(nn.Linear, WIDTH, WIDTH)
    context: Callable[[], object] = torch.no_grad

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(type(self).kind() for _ in range(4))
        self.mix = nn.Parameter(torch.randn(WIDTH, WIDTH) / 5)

    def forward(self, x: Tensor) -> Tensor:
        x = (x @ self.mix).exp()
        with type(self).context():  # type: ignore[attr-defined]
            for layer in self.layers[:2]:
                x = layer(x.float()).tanh()
        for layer in self.layers[2:]:
            x = layer(x.float()).tanh()
        return (x @ self.mix).square().mean()


class Frozen(Model):
    pass


class Mixed(Model):
    context = partial(torch.autocast, "cpu", torch.bfloat16)


class Left(Model):
    """Leaves the autocast that is around it, where there is one."""

    context = partial(torch.autocast, "cpu", enabled=False)


class Shift(nn.Module):
    """Saves nothing for backward, so that the hooks of layers see nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.randn(WIDTH) / 5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


class Rounded(Model):
    """Saves with fewer bits what runs between some layers."""

    kind = Shift
    context = partial(saved_tensors_hooks, Tensor.bfloat16, Tensor.float)


class CallsTwice(nn.Linear):
    """Uses one cast of its weight twice, and adds the gradients of both in the cast's format."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=True):
            return super().forward(super().forward(x.float()).tanh()).float()


class Repeats(Model):
    kind = partial(CallsTwice, WIDTH, WIDTH)
    context = torch.enable_grad


def seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x)
    return loss


def mixed_loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """As a run in bf16 does it."""
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return loss_of(model, x)


def run_of(kind: Callable[[], nn.Module], number: int) -> Run:
    return Run(
        partial(seeded, kind),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        lambda generator: torch.randn(6, WIDTH, generator=generator),
        loss_of,
        num_steps=3,
        num_micro_batches=number,
    )


LOSSES = {"alone": loss_of, "mixed": mixed_loss_of}
POLICIES = {1: Activations.OFFLOAD, 2: Activations.RECOMPUTE, 3: Activations.KEEP}


@pytest.mark.parametrize(
    ("kind", "number", "loss"),
    checkerboard(
        {kind.__name__: kind for kind in (Frozen, Mixed, Left, Rounded, Repeats)},
        (1, 2, 3),
        tuple(LOSSES),
        one_in=7,
    ),
)
def test_a_context_around_layers_is_that_of_the_plain_loop(
    kind: type[Model], number: int, loss: str
) -> None:
    run = replace(run_of(kind, number), loss_of=LOSSES[loss])
    assert differing_under(run, POLICIES[number]) == []
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


class MixesTwice(Mixed):
    """One cast of a weight that no layer owns, from before a layer to behind another."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=True):
            for layer in self.layers:
                x = (layer(x) @ self.mix).tanh()
        return x.float().square().mean()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_cast_that_calls_of_one_micro_batch_would_share_is_refused(
    number: int, loss: str
) -> None:
    run = replace(run_of(MixesTwice, number), loss_of=LOSSES[loss])
    streamed = StreamedRun(run, plan(run, replace(STREAMED, min_layer_bytes=1)))
    with pytest.raises(OpenwaferError, match=r"'mix' is used by several calls in one context"):
        streamed.step(0)
    streamed.close()


class Infers(Model):
    context = torch.inference_mode


def test_a_layer_that_is_called_in_inference_mode_is_refused() -> None:
    run = run_of(Infers, 2)
    with pytest.raises(OpenwaferError, match=r"(?s)inference_mode.*write torch\.no_grad\(\)"):
        plan(run, replace(STREAMED, min_layer_bytes=1))


class Fails(Rounded):
    """Fails inside the context, once it is told to."""

    fails = False

    def forward(self, x: Tensor) -> Tensor:
        def fail(*_: object) -> None:
            raise ValueError("no such token")

        handle = self.layers[1].register_forward_hook(fail) if self.fails else None
        try:
            return super().forward(x)
        finally:
            if handle is not None:
                handle.remove()


def test_a_failure_among_open_contexts_comes_out_as_it_is() -> None:
    run = replace(run_of(Fails, 3), draw=lambda generator: torch.ones(6, WIDTH))
    streamed = StreamedRun(run, plan(run, replace(STREAMED, min_layer_bytes=1)))
    streamed.step(0)
    streamed.model.__dict__["fails"] = True
    with pytest.raises(ValueError, match="no such token"):
        streamed.step(1)
    assert foreign_hooks() is None
    streamed.close()
