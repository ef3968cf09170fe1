"""Layers that torch.compile has compiled stream like others.

The first passes are metered and take the plain call; the others take the compiled one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from openwafer.training.plan_record import Activations
from tests.training.stream.both_loops import (
    STREAMED,
    differing,
    plan,
    train_plainly,
    train_streamed,
)
from tests.training.stream.foreign_loops import SIZE, are_equal, outcome
from tests.training.stream.small_gpt import build_gpt, gpt_run

pytestmark = [
    pytest.mark.slow,
    # Of the compiler, about tensors that it looks at.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
Backend = str | Callable[..., Any]


def compiled_gpt(backend: Backend) -> nn.Module:
    """The small GPT, each of its blocks compiled by itself."""
    torch.compiler.reset()
    model = build_gpt()
    for block in model.layers:
        block.compile(backend=backend)
    return model


@pytest.mark.parametrize("policy", Activations)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_model_of_compiled_blocks_learns_what_it_learns_resident(
    backend: str, policy: Activations
) -> None:
    run = replace(gpt_run(num_steps=5, num_micro_batches=2), build=lambda: compiled_gpt(backend))
    streamed = train_streamed(run, plan(run, replace(STREAMED, default_activations=policy)))
    found = streamed.parameters()
    streamed.close()
    assert differing(found, train_plainly(run)) == []


def test_the_compiler_is_given_the_graphs_of_the_resident_model() -> None:
    graphs: list[str] = []

    def note(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    run = replace(gpt_run(num_steps=5), build=lambda: compiled_gpt(note))
    train_streamed(run, plan(run, STREAMED)).close()
    streamed, graphs[:] = list(graphs), []
    train_plainly(run)
    assert len(graphs) > 0
    assert streamed == graphs


def wrapped_layers() -> nn.Module:
    torch.compiler.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh()) for _ in range(4)))
    for index, layer in enumerate(model):
        model[index] = torch.compile(layer, backend="aot_eager")  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("policy", Activations)
def test_layers_that_a_compiler_wraps_train_in_a_loop_without_its_warnings(
    policy: Activations,
) -> None:
    expected = outcome(lambda loop: loop.train(4), build=wrapped_layers, streams=False)
    found = outcome(lambda loop: loop.train(4), build=wrapped_layers, policy=policy)
    assert are_equal(found, expected)
