"""A graph runs step by step over the parameter store, as the same step in plain torch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.official.runner import GraphRunner
from openwafer.training.frontends.official.text import read_graph
from tests.training.frontends.cirh_graphs import (
    HIDDEN,
    ROWS,
    decaying_products,
    products_with_momentum,
)

NAMES = tuple(f"state.model.blocks.{at}.weight" for at in (0, 1))


@pytest.fixture
def running() -> Callable[..., GraphRunner]:
    def run(text: str, folder: Path | None = None) -> GraphRunner:
        return GraphRunner(read_graph(text, "cirh.mlir"), folder)

    return run


def filled(runner: GraphRunner) -> tuple[Tensor, list[Tensor]]:
    """An input, and the weights that the runner's store has now."""
    torch.manual_seed(0)
    weights = [torch.randn(HIDDEN, HIDDEN) for _ in NAMES]
    for name, weight in zip(NAMES, weights, strict=True):
        runner.write(name, weight)
    return torch.randn(ROWS, HIDDEN), weights


def plain_step(x: Tensor, weights: list[Tensor], momenta: list[Tensor], *, clips: bool) -> Tensor:
    leaves = [one.clone().requires_grad_() for one in weights]
    loss = (x @ leaves[0] @ leaves[1]).square().sum()
    gradients = torch.autograd.grad(loss, leaves)
    norm = sum(one.norm() for one in gradients) if clips else 1.0
    for weight, momentum, gradient in zip(weights, momenta, gradients, strict=True):
        momentum.mul_(0.9).add_(gradient / norm)
        weight.sub_(momentum * 0.01)
    return loss.detach()


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_steps_are_those_of_torch(
    running: Callable[..., GraphRunner], tmp_path: Path, clips: bool, is_on_disk: bool
) -> None:
    runner = running(products_with_momentum(clips=clips), tmp_path / "s" if is_on_disk else None)
    x, weights = filled(runner)
    momenta = [torch.zeros_like(one) for one in weights]
    for _ in range(4):
        expected = plain_step(x, weights, momenta, clips=clips)
        torch.testing.assert_close(runner.step({"input_0": x})["loss"], expected)
    for name, weight in zip(NAMES, weights, strict=True):
        torch.testing.assert_close(runner.read(name), weight)
    runner.close()


def test_the_room_of_a_step_does_not_grow_with_the_depth(
    running: Callable[..., GraphRunner], tmp_path: Path
) -> None:
    held = []
    for depth in (3, 24):
        runner = running(decaying_products(depth), tmp_path / str(depth))
        runner.step({"input_0": torch.randn(ROWS, HIDDEN)})
        runner.store.drain()
        held.append((runner.peak_bytes, runner.store.ring_mapped_bytes, runner.store.dram_bytes))
        runner.close()
    assert held[0] == held[1]


def test_new_values_follow_from_the_old_ones_whatever_is_written_first(
    running: Callable[..., GraphRunner],
) -> None:
    runner = running(decaying_products(2))
    runner.write("state.schedule.step", torch.tensor(3.0))
    found = runner.step({"input_0": torch.ones(ROWS, HIDDEN)})
    assert found["step"] == 3
    assert runner.read("state.schedule.step") == 6
    assert runner.read("state.schedule.rate") == 12


def test_unknown_operations_are_refused_with_their_count(
    running: Callable[..., GraphRunner],
) -> None:
    text = products_with_momentum(clips=True).replace("cirh.Div", "cirh.Fft")
    with pytest.raises(OpenwaferError, match=r"2 of 26 operations.*\n.*cirh.Fft: 2, the first"):
        running(text)


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({}, "input_0 is missing; the graph takes tensor<3x4xf32>"),
        ({"input_0": torch.zeros(3, 5)}, "input_0 is tensor<3x5xf32>; the graph takes"),
    ],
    ids=["missing", "shape"],
)
def test_inputs_of_another_kind_are_refused(
    running: Callable[..., GraphRunner], inputs: dict[str, Tensor], told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        running(products_with_momentum(clips=False)).step(inputs)


@pytest.mark.parametrize(
    ("resource", "told"),
    [
        ("state.model.blocks.0.weigh", "no resource state.model.blocks.0.weigh"),
        (NAMES[0], "is tensor<4x4xf32>, and is to become tensor<2xf32>"),
    ],
    ids=["name", "shape"],
)
def test_weights_of_another_kind_are_refused(
    running: Callable[..., GraphRunner], resource: str, told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        running(products_with_momentum(clips=False)).write(resource, torch.zeros(2))
